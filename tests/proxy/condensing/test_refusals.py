"""Refusals: what errors say of pictures and bytes, and the budget by which a refused view is condensed, once."""

import json

import pytest

from proxy.condensing.ladder.size import MAX_RATIO, SMALLER, RefusedRequest, most_tokens, retry_budget
from proxy.protocols.chat import ANSWER
from proxy.servers import refusals
from proxy.servers.refusals import MANY, Size, Unit
from strategies.core.budget import Budget


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ("At most 5 image(s) may be provided in one request.", 5),
        ("At most 1 image(s) may be provided in one prompt. (parameter=image)", 1),
        ("Too many images in request. Max is 10.", 10),
        ("Too many images in request: 11 images provided, but the model supports a maximum of 10 images.", 10),
        ("Too many images provided. This model supports up to 5 images", 5),
        ("request contains 52 images, exceeding the maximum of 50 allowed per request", 50),
        ("too many images and documents: 120 + 0 > 100", 100),
        ("The model returned the following errors: too many images: 12 > 5", 5),
        ("Too much media: 0 document pages + 107 images > 100", 100),
        ("Image count 5 exceeds limit 4 per request.", 4),
        ("You can only include 10 image links", 10),
        ("At least one of the image dimensions exceed max allowed size for many-image requests: 2000 pixels", MANY),
        ("Too many images.", None),
    ],
)
def test_an_error_allows_so_many_pictures(said: str, allowed: int | None) -> None:
    assert pictures(said) == Size(Unit.PICTURES, allowed)


def pictures(said: str) -> Size | None:
    error = json.dumps({"error": {"message": said, "type": "invalid_request_error"}}).encode()
    return refusals.read(400, error).size(Unit.PICTURES)


@pytest.mark.parametrize(
    "said",
    [
        "At most 0 image(s) may be provided in one prompt.",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
        "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
        "Image dimensions exceed the maximum of 8000 pixels",
        "This model supports at most 4096 output values and no images",
        "Maximum number of image generations reached",
        "Could not download 3 images: limit your image urls to public hosts",
    ],
)
def test_pictures_are_refused_only_in_words_that_are_known(said: str) -> None:
    assert pictures(said) is None


@pytest.mark.parametrize(
    ("said", "is_about_bytes"),
    [
        (b'{"message": "Request Too Long"}', True),
        (b"Failed to buffer the request body: length limit exceeded", True),
        (b'{"error": {"message": "the prompt in the request is too long"}}', False),
    ],
)
def test_a_gateway_that_refuses_bytes_is_understood(said: bytes, is_about_bytes: bool) -> None:
    assert (refusals.read(413, said).size(Unit.BYTES) is not None) == is_about_bytes


RATE = "Request too large for `m` in organization `o` service tier `on_demand` on tokens per minute (TPM): Limit 6,000"
STRING = "Invalid 'input[3].output[0].text': string too long. Expected a string with maximum length 1048576, but got a"


@pytest.mark.parametrize(
    ("status", "said", "size"),
    [
        (
            413,
            f"{RATE}, Requested 7,501, please reduce your message size and try again.",
            Size(Unit.RATE, 6_000, 7_501),
        ),
        (200, f"{RATE}, Used 10, Requested 7501.", Size(Unit.RATE, 6_000, 7_501)),
        (429, f"{RATE}, Used 5900, Requested 1300. Please try again in 12s.", None),
        (429, "Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 4.", None),
        (429, "Extra usage is required for long context requests.", Size(Unit.TIER)),
        (400, f"{STRING} string with length 1500000 instead.", Size(Unit.CHARACTERS, 1_048_576, 1_500_000)),
        (400, STRING.replace("output[0].text", "call_id") + " string with length 1500000 instead.", None),
        (
            400,
            "messages.2.content.0.pdf.source.base64.data: A maximum of 100 PDF pages may be provided.",
            Size(Unit.PAGES, 100),
        ),
    ],
)
def test_a_request_is_too_large_in_one_unit_only_if_it_has_more_than_the_limit(
    status: int, said: str, size: Size | None
) -> None:
    error = json.dumps({"error": {"message": said, "code": "rate_limit_exceeded"}}).encode()
    assert refusals.read(status, error, answer=ANSWER).sizes == (() if size is None else (size,))


def refusal(window: int | None = None, counted: int | None = None) -> Size:
    return Size(Unit.PROMPT, window, counted)


def test_the_aim_is_the_target_lowered_as_the_upstream_counts_more() -> None:
    budget = Budget.of(4_096)
    aim = retry_budget(budget, refusal(4_096, 9_000), RefusedRequest(9_000, 9_000, 0))
    assert aim.target == pytest.approx(budget.target, abs=1)
    assert aim.trigger == pytest.approx(budget.trigger, abs=1)
    assert aim.window == budget.window
    for ratio in [1.2, 1.5, 3.0]:
        budget = Budget.of(4_096)
        aim = retry_budget(budget, refusal(4_096, int(9_000 * ratio)), RefusedRequest(9_000, 9_000, 0))
        assert aim.target == pytest.approx(budget.target / ratio, rel=0.01)


def test_odd_refusals_condense_neither_too_little_nor_to_nothing() -> None:
    aim = retry_budget(Budget.of(4_096), refusal(4_096), RefusedRequest(2_000, 2_000, 0))
    assert aim.trigger < 2_000 * 0.9 + 1
    assert aim.target * 4_096 / 2_000 <= 2_000
    aim = retry_budget(Budget.of(8_192), refusal(8_192, 900_000), RefusedRequest(9_000, 9_000, 0))
    assert aim.target == pytest.approx(Budget.of(8_192).target / MAX_RATIO, rel=0.01)
    aim = retry_budget(Budget.of(4_096, reply_length=3_000), refusal(4_096, 9_000), RefusedRequest(9_000, 9_000, 3_000))
    assert aim.target + 3_000 < 4_096


def test_without_a_number_the_aim_is_a_share_of_what_was_refused() -> None:
    for window in [6_000, 54_000, 400_000]:
        aim = retry_budget(Budget.of(window), refusal(), RefusedRequest(5_000, 7_500, 0))
        assert aim.trigger == pytest.approx(3_500, abs=1)
        assert aim.target == aim.trigger


def test_a_request_after_a_search_is_cut_to_what_the_refusal_leaves() -> None:
    refused = RefusedRequest(9_000, 9_000, 500)
    most = most_tokens(refusal(8_000, 12_000), refused, 8_000, 8_000)
    assert most * 12_000 / 9_000 == pytest.approx(SMALLER * (8_000 - 500))
    assert most_tokens(refusal(200_000, 9_000), refused, 200_000, 200_000) == pytest.approx(SMALLER * 9_000)
