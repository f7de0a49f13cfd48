"""Votes: strict reading, and the rule that decides, for every sequence of outcomes."""

from itertools import product
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.effects import Polls, Tally, Vote, read_vote, tally
from tests.strategies.test_invariants import STABLE

YES, NO, NONE = Vote(True, "done"), Vote(False, "not yet"), Vote(None, error="timeout")
NAMES = {YES: "Y", NO: "N", NONE: "-"}


def vote(decision: str, reasoning: str = "The bug is fixed.") -> str:
    return f"<reasoning>{reasoning}</reasoning>\n<decision>{decision}</decision>"


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["YES", "NO"])
@pytest.mark.parametrize(
    "shape",
    [
        *("{}", "  {}\n", "<think>\nYES or <decision>NO</decision>?\n</think>\n{}", "Well:\n{}"),
        *("YES or <decision>NO</decision>?\n</think>\n{}", "[THINK]<decision>NO</decision>[/THINK]{}"),
    ],
)
def test_a_vote_is_a_reasoning_and_one_decision_in_capitals(decision: str, shape: str) -> None:
    assert read_vote(shape.format(vote(decision))) == Vote(decision == "YES", "The bug is fixed.")


def test_line_breaks_inside_of_the_tags_do_no_harm() -> None:
    assert read_vote("<reasoning>\none\ntwo\n</reasoning>\n<decision>\nNO\n</decision>") == Vote(False, "one\ntwo")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("<think>I would say YES.</think>", "empty"),
        ("YES", "no-decision"),
        ("<reasoning>fine</reasoning>", "no-decision"),
        ("<reasoning>fine</reasoning><decision>YES", "no-decision"),
        ("<reasoning>fine</reasoning><DECISION>YES</DECISION>", "no-decision"),
        ("<reasoning>I say <decision>YES</decision></reasoning>", "no-decision"),
        (vote("YES") + "<decision>YES</decision>", "two-decisions"),
        (vote("NO", "not <decision>YES</decision>"), "two-decisions"),
        (vote("YES") + vote("NO"), "two-decisions"),
        (vote("yes"), "bad-decision"),
        (vote("Yes"), "bad-decision"),
        (vote("NO."), "bad-decision"),
        (vote("YES NO"), "bad-decision"),
        (vote(""), "bad-decision"),
        ("<decision>YES</decision>", "no-reasoning"),
        (vote("YES", " "), "no-reasoning"),
        ("<reasoning>open<decision>YES</decision>", "no-reasoning"),
    ],
)
def test_a_text_that_is_no_vote_says_why(text: str, error: str) -> None:
    found = read_vote(text)
    assert (found.yes, found.error) == (None, error)


def test_an_unreadable_vote_keeps_its_reasoning() -> None:
    assert read_vote(vote("maybe")).reasoning == "The bug is fixed."


PARTS = ("<reasoning>", "</reasoning>", "<decision>", "</decision>", "<think>", "</think>", "YES", "NO", "x", "\n")


@given(st.lists(st.sampled_from(PARTS), max_size=20))
@STABLE
def test_any_text_is_read_as_a_vote_or_an_error(parts: list[str]) -> None:
    found = read_vote("".join(parts))
    assert (found.yes is None) == bool(found.error)


# --- deciding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "votes", "expected"),
    [
        (5, "YYY", Tally(True, 3, 3, 3, 0)),
        (5, "NNN", Tally(False, 3, 3, 0, 3)),
        (5, "YYNNY", Tally(True, 3, 5, 3, 2)),
        (5, "YYNNN", Tally(False, 3, 5, 2, 3)),
        (5, "YYNN", Tally(True, 2, 4, 2, 2)),
        (5, "YN", Tally(True, 1, 2, 1, 1)),
        (5, "YNN", Tally(False, 2, 3, 1, 2)),
        (5, "Y", Tally(True, 1, 1, 1, 0)),
        (5, "N--", Tally(False, 1, 1, 0, 1)),
        (5, "---", Tally(False, 0, 0, 0, 0)),
        (5, "", Tally(False, 0, 0, 0, 0)),
        (4, "YYNN", Tally(True, 2, 4, 2, 2)),
        (4, "NNN", Tally(False, 2, 3, 0, 3)),
        (4, "NNY", Tally(False, 2, 3, 1, 2)),
        (1, "Y", Tally(True, 1, 1, 1, 0)),
        (1, "N", Tally(False, 1, 1, 0, 1)),
        (2, "YN", Tally(True, 1, 2, 1, 1)),
    ],
)
def test_half_of_the_votes_rounded_up_decide(k: int, votes: str, expected: Tally) -> None:
    of = {name: each for each, name in NAMES.items()}
    assert tally([of[name] for name in votes], k) == expected


def by_the_rule(valid: list[bool], k: int) -> bool:
    """The written rule, said a second time: the first `k` valid votes of all that were ever to be had."""
    counted = valid[:k]
    return bool(counted) and sum(counted) >= ceil(len(counted) / 2)


def held(k: int, most: int, outcomes: list[Vote], order: list[int] | None = None) -> tuple[Polls, int]:
    """Polls that were run to their end: `outcomes` are those of calls in the order in which they began, `order` says
    which of the calls that run ends next. Also the number of calls."""
    polls, running, begun = Polls(k, most), list[int](), 0
    picks = iter(order or [])
    while True:
        more = polls.start_calls()
        running += range(begun, begun + more)
        begun += more
        if not running or polls.is_decided:
            return polls, begun
        polls.add_vote(outcomes[running.pop(next(picks, 0) % len(running))])


ballots = st.integers(1, 9).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(st.sampled_from([YES, NO, NONE]), min_size=3 * k, max_size=3 * k),
        st.lists(st.integers(0, 8), max_size=3 * k),
    )
)


@given(ballots)
@STABLE
def test_the_decision_follows_the_rule_whatever_comes_of_the_calls(drawn: tuple[int, list[Vote], list[int]]) -> None:
    """Stopping early decides as waiting for all the calls would have done."""
    k, outcomes, order = drawn
    polls, begun = held(k, 3 * k, outcomes, order)
    assert begun <= 3 * k
    valid = [each.yes for each in outcomes if each.yes is not None]
    assert tally(polls.votes, k).yes == by_the_rule(valid, k)


@given(ballots)
@STABLE
def test_no_call_begins_after_the_decision(drawn: tuple[int, list[Vote], list[int]]) -> None:
    k, outcomes, _ = drawn
    polls, taken = Polls(k, 3 * k), 0
    assert polls.start_calls() == k
    running = k
    while running:
        assert polls.start_calls() == 0
        polls.add_vote(outcomes[taken])
        taken, running = taken + 1, running - 1
        if polls.is_decided:
            assert polls.start_calls() == 0
        elif not running:
            running = polls.start_calls()
            assert running <= 1


def test_judges_that_all_fail_have_said_no() -> None:
    polls, begun = held(5, 15, [NONE] * 15)
    assert begun == len(polls.votes) == 15
    assert not polls.is_decided
    assert tally(polls.votes, 5) == Tally(False, 0, 0, 0, 0)


def test_five_votes_are_decided_once_the_outcome_is_certain() -> None:
    for outcomes in product([YES, NO], repeat=5):
        polls, _ = held(5, 15, list(outcomes))
        yes = sum(each.yes is True for each in outcomes)
        assert tally(polls.votes, 5).yes == (yes >= 3)
        last = polls.votes[-1].yes
        assert sum(each.yes is last for each in polls.votes) == 3


def test_more_votes_than_attempts_are_never_asked_for() -> None:
    assert Polls(5, 3).start_calls() == 3
    polls, begun = held(5, 3, [YES, NO, NO])
    assert begun == 3
    assert tally(polls.votes, 5) == Tally(False, 2, 3, 1, 2)
