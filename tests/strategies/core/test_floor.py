"""The floor: the tokens that no condensation can remove, and when asking a model can help."""

import pytest

from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.requirement import MIN_RESULT, Requirement, can_help, floor
from strategies.core.view import View
from tests.strategies.driving import attempted, failing
from tests.support.transcripts import agent, assistant, chat, system, user, view_of, words

BUDGET = Budget.of(1_000)  # usable 875


def test_it_has_tools_systems_the_task_the_question_and_the_newest_round() -> None:
    view = view_of([system(words(10)), user(words(20)), *chat(3, 50)[1:]], fixed=400)
    kept = [view.items[0], view.items[-2], view.items[-1]]
    assert floor(view, BUDGET) == 400 + 14 + sum(item.message.tokens for item in kept)


def test_a_long_task_or_result_counts_as_what_is_left() -> None:
    view = view_of([system(), user(words(600)), assistant("yes"), user("go on"), *agent(3, 500)[2:]])
    assert floor(view, BUDGET) <= view.fixed_tokens + BUDGET.task_cap + 40 + MIN_RESULT


def test_a_task_that_is_the_last_question_counts_whole() -> None:
    view = view_of([system(), user(words(600)), *agent(3, 500)[2:]])
    assert floor(view, BUDGET) >= view.fixed_tokens + 600


def test_nothing_that_is_condensed_is_smaller() -> None:
    for turns in range(2, 9):
        view = view_of(chat(turns, 60), fixed=300)
        try:
            after = attempted(Requirement.HARD, "recent", view, BUDGET).view
        except StrategyError:
            continue
        assert floor(view, BUDGET) <= after.tokens


def room_for(tokens: int) -> View:
    """A view of which all but so many tokens can never go, in a window of 1,000."""
    view = view_of(chat(6, 60))
    return view_of(chat(6, 60), fixed=BUDGET.usable - floor(view, BUDGET) - tokens)


@pytest.mark.parametrize("requirement", [Requirement.HARD, Requirement.OVERFLOW])
def test_no_model_is_asked_where_no_record_fits(requirement: Requirement) -> None:
    assert can_help(requirement, room_for(200), BUDGET)
    assert not can_help(requirement, room_for(50), BUDGET)
    assert "half-window" in attempted(requirement, "half-window", room_for(200), BUDGET, failing).reasons
    assert "half-window" not in attempted(requirement, "half-window", room_for(50), BUDGET, failing).reasons


def test_a_preparation_must_be_able_to_take_a_tenth() -> None:
    view = view_of([*chat(2, 20)[:-1], user("x")], fixed=500)
    assert not can_help(Requirement.PREPARE, view, BUDGET)
    assert can_help(Requirement.PREPARE, view_of(chat(8, 60)), BUDGET)


def test_what_a_person_asks_for_is_tried() -> None:
    assert can_help(Requirement.FORCED, view_of([user("x"), assistant("y"), user("z")], fixed=990), BUDGET)
