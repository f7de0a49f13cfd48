"""The signs that an upstream has not read a prompt whole."""

from __future__ import annotations

import pytest

from proxy.learning.truncation import (
    CountedReply,
    Judgement,
    Sign,
    Suspicion,
    clears,
    judge,
    setting_of,
    sign_of,
    suspect_after,
)

WHOLE = Judgement(Suspicion.WHOLE)


@pytest.mark.parametrize(
    ("reply", "sign"),
    [
        (CountedReply(9_000, 8_800), None),
        (CountedReply(9_000, 6_300), None),
        (CountedReply(9_000, 6_299), Sign.BELOW_ESTIMATE),
        (CountedReply(1_500, 100), None),
        (CountedReply(1_400, 1_000, prefix=1_001), Sign.BELOW_PREFIX),
        (CountedReply(1_400, 1_001, prefix=1_001), None),
        (CountedReply(6_133, 6_133, prefix=6_900), None),  # it has become shorter, and was read whole
        (CountedReply(9_000, 12_000), None),
    ],
)
def test_a_usage_that_is_too_small_is_a_sign(reply: CountedReply, sign: Sign | None) -> None:
    assert sign_of(reply) == sign


def test_two_longer_requests_with_the_same_count_are_a_sign() -> None:
    last = CountedReply(5_000, 4_096)
    assert sign_of(CountedReply(5_600, 4_096), last) is Sign.SAME_COUNT
    assert sign_of(CountedReply(5_600, 4_097), last) is None
    assert sign_of(CountedReply(5_010, 4_096), last) is None  # the same request, told otherwise
    assert (
        sign_of(CountedReply(5_600, 4_096, prefix=4_096), CountedReply(1_400, 1_400)) is Sign.SAME_COUNT
    )  # of its own beginning
    assert sign_of(CountedReply(4_150, 4_096, prefix=4_096)) is None
    assert (
        sign_of(CountedReply(1_400, 1_000), CountedReply(1_200, 1_000)) is None
    )  # too short for a count to say anything


def test_which_of_two_prompts_is_longer_is_told_by_our_own_count_alone() -> None:
    last = CountedReply(3_300, 3_611, own=3_300)
    assert (
        sign_of(CountedReply(3_611, 3_611, own=3_300), last) is None
    )  # the same one, expected to be counted otherwise
    assert sign_of(CountedReply(3_611, 3_611, own=3_400), last) is Sign.SAME_COUNT
    assert sign_of(CountedReply(3_611, 3_611, exact=False, own=3_900), last) is None  # counted in another way
    suspect = CountedReply(9_000, 4_000, own=9_000)
    assert judge(CountedReply(9_900, 4_000, own=9_000), suspect).suspicion is Suspicion.SUSPECT
    assert judge(CountedReply(9_900, 4_000, own=9_010), suspect).suspicion is Suspicion.CONFIRMED


def test_the_first_sign_makes_suspect_and_the_second_on_a_longer_request_confirms() -> None:
    first, second = CountedReply(9_000, 4_000), CountedReply(12_000, 4_090)
    assert judge(first, None) == Judgement(Suspicion.SUSPECT, Sign.BELOW_ESTIMATE)
    assert judge(second, first) == Judgement(Suspicion.CONFIRMED, Sign.BELOW_ESTIMATE, 4_090)


@pytest.mark.parametrize(
    "second",
    [
        CountedReply(9_000, 4_000),  # the same request again
        CountedReply(8_000, 4_000),  # a shorter one
        CountedReply(12_000, 1_200),  # a count of another size: it goes with what is new
        CountedReply(12_000, 8_300),
    ],
)
def test_a_second_sign_that_does_not_agree_with_the_first_confirms_nothing(second: CountedReply) -> None:
    assert judge(second, CountedReply(9_000, 4_000)).suspicion is not Suspicion.CONFIRMED


def test_counts_that_are_small_beside_what_was_read_whole_before_confirm_nothing() -> None:
    first, second = CountedReply(9_000, 1_200), CountedReply(10_500, 1_300)
    assert judge(second, first, whole=2_600).suspicion is Suspicion.CONFIRMED
    assert judge(second, first, whole=8_000).suspicion is Suspicion.SUSPECT
    assert (
        judge(CountedReply(3_000, 400), CountedReply(2_600, 400)).suspicion is Suspicion.SUSPECT
    )  # no server keeps so little


def test_a_prompt_that_was_read_whole_speaks_for_those_that_are_no_longer() -> None:
    suspect = CountedReply(9_000, 4_000)
    assert judge(CountedReply(9_000, 9_100), suspect) == WHOLE
    assert clears(CountedReply(9_000, 9_100), suspect)
    assert clears(CountedReply(8_000, 9_000), suspect)
    assert not clears(CountedReply(3_000, 3_000), suspect)
    assert not clears(CountedReply(9_500, 4_010), suspect)  # of a longer one no more was read


@pytest.mark.parametrize(
    ("traces", "setting"),
    [
        ("http://localhost:11434/v1", "num_ctx"),
        ('http://models/v1 {"system_fingerprint":"fp_ollama"', "num_ctx"),
        ("http://localhost:1234/v1", "LM Studio"),
        ("http://models/v1 llama.cpp", "--ctx-size"),
        ("http://models/v1 uvicorn", "--max-model-len"),
    ],
)
def test_the_setting_that_raises_the_window_is_named_for_the_server_at_hand(traces: str, setting: str) -> None:
    assert setting in setting_of(traces)


# -- where nothing has calibrated our count ----------------------------------------------------------------------


def uncalibrated(sent: int, counted: int) -> CountedReply:
    return CountedReply(sent, counted, None, calibrated=False)


def test_counts_that_grow_with_the_requests_are_those_of_another_tokenizer() -> None:
    first = uncalibrated(9_000, 5_400)
    assert judge(first, None).suspicion is Suspicion.SUSPECT
    assert judge(uncalibrated(9_300, 5_580), first).suspicion is Suspicion.SUSPECT
    assert judge(uncalibrated(12_000, 7_200), first) == WHOLE


def test_counts_that_stay_where_the_requests_grow_are_those_of_a_window() -> None:
    first = uncalibrated(6_500, 4_050)
    assert judge(uncalibrated(7_500, 4_090), first).suspicion is Suspicion.CONFIRMED
    assert judge(uncalibrated(9_000, 4_090), first).suspicion is Suspicion.CONFIRMED


def test_no_tokenizer_makes_less_than_half_of_our_tokens() -> None:
    assert judge(uncalibrated(12_000, 5_900), uncalibrated(10_000, 4_900)).suspicion is Suspicion.CONFIRMED


def test_where_a_count_is_calibrated_it_need_not_stay_the_same() -> None:
    assert judge(CountedReply(12_000, 7_200), CountedReply(9_000, 5_400)).suspicion is Suspicion.CONFIRMED


def test_a_suspect_reply_is_held_against_until_a_request_is_clearly_longer() -> None:
    first, near, far = uncalibrated(9_000, 5_400), uncalibrated(9_300, 5_580), uncalibrated(9_300, 5_420)
    assert suspect_after(near, first) == first
    assert suspect_after(far, first) == far
    assert suspect_after(first, None) == first


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (CountedReply(5_000, 3_000), CountedReply(6_000, 3_100)),  # twice below the estimate
        (
            CountedReply(5_000, 4_096),
            CountedReply(5_600, 4_096),
        ),  # the same count, after one that was below the estimate
        (CountedReply(5_000, 3_000), CountedReply(6_000, 3_900, prefix=4_000)),
    ],
)
def test_any_two_signs_confirm_and_one_alone_does_not(one: CountedReply, two: CountedReply) -> None:
    assert judge(two, None, one).suspicion is not Suspicion.CONFIRMED
    assert judge(two, one, one).suspicion is Suspicion.CONFIRMED


def test_a_count_by_length_is_only_held_against_a_usage_that_is_far_below() -> None:
    by_length = CountedReply(9_000, 5_400, exact=False)
    assert sign_of(by_length) is None
    assert sign_of(by_length._replace(counted=3_100)) is Sign.BELOW_ESTIMATE
    assert sign_of(by_length._replace(prefix=5_500)) is Sign.BELOW_PREFIX
