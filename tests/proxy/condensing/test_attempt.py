"""What is sent, and what its success stores."""

from __future__ import annotations

import json

import pytest

from proxy.condensing.account import Timing
from proxy.condensing.attempt import ReplyFacts, session_after
from proxy.condensing.refusals import MANY, pictures_allowed, refuses_bytes
from proxy.sessions.session import DERIVED, Session
from tests.support.driver import conversation, request, running_services

pytestmark = pytest.mark.anyio


async def test_nothing_is_stored_for_a_request_that_forbids_it() -> None:
    async with running_services() as services:
        exchange = await services.exchanges.open(request(conversation(40), no_store="true"))
    assert not exchange.stores


async def test_the_request_as_it_came_follows_only_if_it_fits() -> None:
    async with running_services() as services:
        parts = services.exchanges
        found = []
        for turns in (10, 400):
            context = await parts.intake.build_context(request(conversation(turns), force="true"), Timing())
            refused = parts.attempts.of(await parts.decider.decide(context))
            found.append(parts.attempts.original_of(refused.decision))
    original, too_long = found
    assert original is not None
    assert original.decision.body == original.context.request.body.data
    assert (original.decision.reason, too_long) == ("rewrite-refused", None)


async def test_the_session_after_a_turn_counts_what_was_saved() -> None:
    async with running_services() as services:
        parts = services.exchanges
        context = await parts.intake.build_context(request(conversation(40)), Timing())
        decision = await parts.decider.decide(context)
        session = session_after(parts.attempts.of(decision), ReplyFacts(), Session("s", DERIVED, 0.0), None, 1.0)
    assert decision.applied is not None
    assert [branch.applied for branch in session.branches] == [decision.applied.id]
    saved = session.totals["client_tokens"] - session.totals["forwarded_tokens"]
    assert session.saved_tokens == {decision.applied.id: saved}
    assert saved > 0


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
        ("Too many images.", 0),
        ("At most 0 image(s) may be provided in one prompt.", None),
        ("messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes", None),
        ("Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'", None),
        ("Image dimensions exceed the maximum of 8000 pixels", None),
        ("This model supports at most 4096 output values and no images", None),
        ("Maximum number of image generations reached", None),
        ("Could not download 3 images: limit your image urls to public hosts", None),
    ],
)
def test_an_error_allows_so_many_pictures_only_in_words_that_are_known(said: str, allowed: int | None) -> None:
    error = json.dumps({"error": {"message": said, "type": "invalid_request_error"}}).encode()
    assert pictures_allowed(400, error) == allowed


@pytest.mark.parametrize(
    ("said", "is_about_bytes"),
    [
        (b'{"message": "Request Too Long"}', True),
        (b"Failed to buffer the request body: length limit exceeded", True),
        (b'{"error": {"message": "the prompt in the request is too long"}}', False),
    ],
)
def test_a_gateway_that_refuses_bytes_is_understood(said: bytes, is_about_bytes: bool) -> None:
    assert refuses_bytes(413, said) == is_about_bytes
