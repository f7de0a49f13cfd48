from __future__ import annotations

import pytest

from proxy.replaying.measures import (
    ForwardedMessage,
    ReplayedConversation,
    ReplayedRequest,
    cheaper_from,
    common_prefix,
    summarize,
)
from proxy.replaying.recorded import Question

A, B, C = ForwardedMessage("a", 10), ForwardedMessage("b", 20), ForwardedMessage("c", 30)


def forwarded_request(
    messages: int, shared: int = 0, *, original: int = 100, usable: int = 1_000, own: int = 0, ms: float = 1.0
) -> ReplayedRequest:
    return ReplayedRequest(original, messages, shared, 5, usable, ms, own)


def cached_share(*requests: ReplayedRequest) -> float | None:
    return summarize("mask", [ReplayedConversation(requests)]).cached_share


def refused_request(original: int = 100) -> ReplayedRequest:
    return ReplayedRequest(original, None, 0, 5, 1_000, 2.0)


@pytest.mark.parametrize(("forwarded", "own", "saved"), [(245, 0, 0.75), (245, 500, 0.25), (1_495, 0, -0.5)])
def test_saved_counts_our_own_calls(forwarded: int, own: int, saved: float) -> None:
    played = ReplayedConversation([forwarded_request(forwarded, original=1_000, own=own)])
    assert summarize("mask", [played]).saved_share == saved


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [([], [A, B], 0), ([A], [A, B], 10), ([A, B], [A, B, C], 30), ([A, B], [A, C], 10), ([A, B], [B, A], 0)],
)
def test_the_common_prefix_ends_at_the_first_difference(
    before: list[ForwardedMessage], after: list[ForwardedMessage], tokens: int
) -> None:
    assert common_prefix(before, after) == tokens


def test_the_cached_share_is_of_all_that_was_forwarded() -> None:
    assert cached_share(forwarded_request(10), forwarded_request(30, 10), forwarded_request(40)) == 10 / 80


def test_a_refused_request_has_no_part_in_the_cached_share() -> None:
    assert cached_share(forwarded_request(10), refused_request(), forwarded_request(30, 10)) == 10 / 40
    assert cached_share(refused_request()) is None


def test_a_request_without_room_for_the_reply_overflows() -> None:
    assert not forwarded_request(30, usable=35).overflows
    assert forwarded_request(30, usable=34).overflows
    assert refused_request().overflows


@pytest.mark.parametrize(
    ("evidence", "reaches"),
    [(["the cat sat"], True), (["the cat sat", "the mat"], True), (["the cat", "a dog"], False), (["The cat"], False)],
)
def test_a_question_reaches_where_all_its_evidence_stands_word_for_word(evidence: list[str], reaches: bool) -> None:
    assert Question("?", evidence, [0]).reaches("the cat sat\non the mat") is reaches


def test_a_summary_adds_all_conversations_up() -> None:
    long = ReplayedConversation(
        [forwarded_request(10, ms=1.0), forwarded_request(30, own=7, ms=9.0)], {"evidence": (1, 3)}
    )
    short = ReplayedConversation([forwarded_request(30, usable=30, ms=2.0)], {"evidence": (1, 1)})

    summary = summarize("mask", [long, short])

    assert (summary.requests, summary.forwarded, summary.own) == (3, 15 + 35 + 35, 7)
    assert summary.saved_share == pytest.approx(1 - (85 + 7) / 300)
    assert (summary.overflows, summary.refused) == (1, 0)
    assert (summary.evidence_share, summary.questions) == (0.5, 4)
    assert (summary.median_ms, summary.max_ms) == (2.0, 9.0)


def test_a_summary_knows_the_largest_request() -> None:
    summary = summarize(
        "mask", [ReplayedConversation([forwarded_request(10), forwarded_request(30, 10), refused_request()])]
    )

    assert (summary.largest, summary.read_anew) == (35, 10 + 20)


def test_a_refused_request_is_no_saving() -> None:
    summary = summarize("mask", [ReplayedConversation([forwarded_request(10), refused_request(original=10_000)])])

    assert summary.saved_share == pytest.approx(1 - 15 / 100)
    assert (summary.overflows, summary.refused) == (1, 1)


def test_nothing_played_is_a_summary_without_shares() -> None:
    summary = summarize("off", [])

    assert (summary.saved_share, summary.cached_share, summary.evidence_share) == (None, None, None)


def test_a_way_is_cheaper_once_it_stays_so() -> None:
    assert cheaper_from([1, 5, 1, 1, 1], [2, 2, 3, 3, 3]) == 4
    assert cheaper_from([1, 1], [2, 2]) == 1
    assert cheaper_from([1, 9], [2, 2]) is None


def test_shares_of_what_is_kept_and_voted_have_intervals_over_conversations() -> None:
    request = ReplayedRequest(100, 80, 0, 0, 200, 1.0, own_tokens=10, votes=3, yes_votes=1)
    summary = summarize("a", [ReplayedConversation([request], {"rules": (each, 4)}) for each in (1, 3)], direct=())

    assert (summary.rules_share, summary.votes, summary.saved_share) == (0.5, 6, 0.1)
    assert summary.intervals["rules"] == (0.5, 0.25, 0.75)
    assert summary.intervals["yes"] == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert summary.intervals["evidence"] is None
