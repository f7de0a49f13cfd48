"""Splits: where a condensed prefix ends, and the size of the view that it leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.errors import InvalidPlan
from strategies.core.messages import dump
from strategies.core.pieces import Literal, PieceKind
from strategies.core.plan import Plan, Split, apply, replace_before
from strategies.core.replacement import replacement
from strategies.core.view import View
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import WORDS, Body, agent, assistant, chat, conversations, user, view_of

SIZE = WORDS.message(user("[summary]"))
SUMMARY = Literal(dump(user("[summary]")), PieceKind.REPLACEMENT)


def split(view: View, task_cap: int = 1_000) -> Split:
    return Split(view, SIZE, task_cap)


@pytest.mark.parametrize(
    "bodies", [agent(6), chat(6), [assistant("hi"), *agent(4)[1:]]], ids=["agent", "chat", "greeted"]
)
def test_the_size_of_what_is_left_is_what_the_view_will_have(bodies: list[Body]) -> None:
    view = view_of(bodies, fixed=33)
    for end in split(view).round_cuts():
        after = apply(view, Plan((replace_before(view, end, SUMMARY, 1_000),)))
        assert split(view).tokens_after(end) == after.tokens


@given(bodies=conversations(), task_cap=st.sampled_from([60, 1_000]))
@STABLE
def test_the_expected_size_is_never_below_the_views(bodies: list[Body], task_cap: int) -> None:
    view = view_of(bodies)
    for end in split(view, task_cap).round_cuts():
        try:
            after = apply(view, Plan((replace_before(view, end, SUMMARY, task_cap),)))
        except InvalidPlan:
            continue
        if not view.task or task_cap == 1_000:
            assert after.tokens <= split(view, task_cap).tokens_after(end) + 20


def test_turns_are_cut_at_their_starts_or_rounds() -> None:
    view = view_of([*chat(3, pending=False), user("work"), *agent(3)[2:]])
    assert split(view).turn_cuts() == [2, 4, 6, 7, 9, 11]


def test_finished_turns_may_be_cut_at_rounds_only_as_a_second_choice() -> None:
    view = view_of([*agent(6, size=100)[1:], user("done?")])
    found = split(view)
    assert found.turn_cuts() == []
    assert found.round_cuts() == [1, 3, 5, 7, 9, 11]
    assert found.first_at_turn(goal=350) == found.first_at_round(goal=350) == 9


def test_the_first_cut_that_meets_the_goal_is_taken() -> None:
    view = view_of(chat(10, size=50))
    found = split(view)
    cuts = found.turn_cuts()
    assert found.first_at_turn(view.tokens) == cuts[0]
    assert found.first_at_turn(found.tokens_after(cuts[4])) == cuts[4]
    assert found.first_at_turn(0) == found.round_cuts()[-1]
    assert found.first_at_turn(view.tokens, start=cuts[3]) == cuts[3]


def test_there_is_no_cut_behind_the_limit() -> None:
    view = view_of(chat(3))
    assert max(split(view).round_cuts()) == view.last_cut == 5
    assert split(view).first_at_round(0, start=view.last_cut + 1) is None


def test_a_cut_right_behind_an_earlier_replacement_would_condense_nothing() -> None:
    view = view_of(chat(8))
    view = apply(view, Plan((replace_before(view, 6, replacement("so far", 5, WORDS.dialect), 100),)))
    assert view.replacement == 1
    assert view.structure.turns[1].start == 2
    assert min(split(view).round_cuts()) == 3
