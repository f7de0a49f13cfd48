"""Which messages are forgotten: units, zones, and the order in which they go."""

import pytest
from hypothesis import given

from strategies.core.budget import Budget
from strategies.core.view import View
from strategies.selection import Aim, Selection, Unit, forgettable, select
from tests.strategies.driving import condensed
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import Body, agent, assistant, call, chat, conversations, system, tool, user, view_of


def alike(_: Unit) -> float:
    return 0.5


def items(view: View) -> list[tuple[int, ...]]:
    return [unit.items for unit in forgettable(view)]


def forgotten(bodies: list[Body], *, events: int, first: int = 1, last: int = 2, tokens: int = 0) -> tuple[int, ...]:
    return select(view_of(bodies), Aim(events, first, last, tokens), alike).forgotten


# --- units ------------------------------------------------------------------------------------------------------


def test_a_round_is_one_unit_with_all_its_results() -> None:
    bodies = [user("go"), assistant(None, call("a"), call("b")), tool("b"), tool("a"), assistant("so"), *agent(1)[2:]]
    assert items(view_of(bodies)) == [(1, 2, 3), (4,)]


def test_a_question_is_one_unit_with_the_last_round_of_its_turn() -> None:
    bodies = [
        *chat(1, pending=False),
        user("Next"),
        *agent(2)[2:],
        assistant("Done."),
        user("a"),
        assistant("b"),
        user("c"),
    ]
    assert items(view_of(bodies)) == [(1,), (2, 7), (3, 4), (5, 6)]


def test_tasks_last_questions_newest_rounds_and_records_are_in_no_unit() -> None:
    assert items(view_of(chat(3))) == [(1,), (2, 3)]
    assert items(view_of([system(), user("only")])) == []
    assert items(view_of(agent(1))) == []


def test_what_answers_late_stays_with_its_call() -> None:
    bodies = [user("go"), assistant(None, call("a")), user("wait"), tool("a"), *agent(1)[1:]]
    assert (1, 2, 3) in items(view_of(bodies))


@given(bodies=conversations(broken=True))
@STABLE
def test_units_are_disjoint_and_end_before_the_limit(bodies: list[Body]) -> None:
    view = view_of(bodies)
    found = [i for unit in forgettable(view) for i in unit.items]
    assert len(found) == len(set(found))
    assert all(i < view.last_cut for i in found)


# --- order ------------------------------------------------------------------------------------------------------


def test_the_lowest_score_goes_first_and_of_equals_the_oldest() -> None:
    view = view_of(agent(10))
    scores = {1: 0.9, 5: 0.1, 9: 0.2}
    chosen = select(view, Aim(18, 1, 2, 0), lambda unit: scores.get(unit.items[0], 0.3))
    assert chosen.forgotten == (5, 6, 9, 10)
    assert select(view, Aim(16, 1, 2, 0), lambda unit: scores.get(unit.items[0], 0.3)).forgotten == (3, 4, 5, 6, 9, 10)


def test_something_is_always_forgotten() -> None:
    assert forgotten(agent(10), events=100) == (1, 2)


def test_what_came_before_the_first_user_message_goes_whenever_anything_goes() -> None:
    bodies = [assistant("Hello"), assistant("again"), user("go"), *agent(10)[2:]]
    assert forgotten(bodies, events=100) == (0, 1)
    assert forgotten(bodies, events=20) == (0, 1, 3, 4)


def test_the_first_and_the_newest_events_go_for_tokens_only() -> None:
    bodies = agent(10, size=50)
    assert forgotten(bodies, events=3, first=3, last=8) == tuple(range(3, 13))
    tokens = sum(item.message.tokens for item in view_of(bodies).items)
    assert forgotten(bodies, events=3, first=3, last=8, tokens=tokens - 300) == tuple(range(3, 17))
    assert forgotten(bodies, events=3, first=3, last=8, tokens=tokens) == tuple(range(1, 19))


def test_an_earlier_record_is_forgotten_with_the_first_unit_and_never_alone() -> None:
    bodies = agent(12, size=80)
    view = condensed("summary", view_of(bodies), Budget.of(2_000).with_goal(900))
    record = view.items[1].message.tokens
    chosen = select(view, Aim(3, 1, 2, 0), alike)
    assert chosen.forgotten[:2] == (1, 2)
    assert chosen.tokens == record + sum(view.items[i].message.tokens for i in chosen.forgotten[1:])
    smallest = condensed("summary", view_of(bodies), Budget.of(2_000).with_goal(0))
    assert select(smallest, Aim(3, 1, 2, 10_000), alike) == Selection((), 0)


@pytest.mark.parametrize("events", [3, 10, 30])
def test_no_more_events_are_left_than_wanted_where_units_allow_it(events: int) -> None:
    view = view_of(chat(40, size=5))
    chosen = select(view, Aim(events, 1, 1, 0), alike)
    assert view.size - len(chosen.forgotten) + 1 <= max(events, 5)
