"""`recent`: the oldest rounds are dropped."""

import pytest

from strategies.core.budget import Budget
from strategies.core.errors import Declined
from strategies.core.view import View
from tests.strategies.driving import condensed, plan_of, stages_of, texts
from tests.support.transcripts import Body, agent, assistant, call, chat, tool, user, view_of, words

BUDGET = Budget.of(10_000)


def recent(bodies: list[Body], goal: int) -> View:
    return condensed("recent", view_of(bodies), BUDGET.with_goal(goal))


def test_the_oldest_rounds_go_until_the_goal_is_met() -> None:
    whole = view_of(agent(10, size=100))
    view = recent(agent(10, size=100), whole.tokens - 150)
    assert [text.split("\n")[0] for text in texts(view)[2::2]] == [str(i) for i in range(2, 10)]
    assert view.tokens <= whole.tokens - 150


def test_first_and_last_user_message_and_newest_round_stay() -> None:
    said = texts(recent(chat(5), 0))
    assert said[0] == "Question 0?"
    assert said[1] == "Question 4?"
    assert said[2].startswith("Answer 4")
    assert said[3] == "And now?"


def test_an_agents_only_user_message_stays() -> None:
    said = texts(recent(agent(6), 0))
    assert said[0].startswith("Fix the bug")
    assert said[2].startswith("5\n")
    assert len(said) == 3


def test_a_user_message_goes_with_the_last_round_of_its_turn() -> None:
    bodies = [
        user("a"),
        assistant("b"),
        user("c"),
        assistant("d " + words(50)),
        assistant("e"),
        user("f"),
        assistant("g"),
    ]
    whole = view_of(bodies).tokens
    assert texts(recent(bodies, whole - 50)) == ["a", "c", "e", "f", "g"]
    assert texts(recent(bodies, whole - 65)) == ["a", "f", "g"]


def test_parallel_calls_go_with_all_of_their_results() -> None:
    bodies = [user("a"), assistant(None, call("x"), call("y")), tool("y", words(50)), tool("x"), *agent(2)[2:]]
    assert len(texts(recent(bodies, view_of(bodies).tokens - 1))) == len(bodies) - 3


def test_an_earlier_record_stays() -> None:
    view = condensed("half-window", view_of(chat(14, size=100)), Budget.of(2_500))
    after = condensed("recent", view, BUDGET.with_goal(500))
    assert after.replacement == view.replacement == 1
    assert 300 < after.tokens <= 500 < view.tokens


def test_user_messages_that_nobody_answered_may_go() -> None:
    bodies = [user("task"), user("document " + words(500)), user("question")]
    assert texts(recent(bodies, 100)) == ["task", "question"]


def test_no_message_goes_between_a_result_and_its_later_call() -> None:
    bodies = [user("a"), assistant("b"), user("c"), user("d"), tool("x"), assistant(None, call("x"))]
    with pytest.raises(Declined) as declined:
        recent(bodies, 0)
    assert declined.value.reason == "nothing-to-drop"


@pytest.mark.parametrize("bodies", [chat(0), chat(1), agent(1), agent(0)], ids=["asked", "answered", "round", "task"])
def test_nothing_to_drop_is_said(bodies: list[Body]) -> None:
    with pytest.raises(Declined) as declined:
        recent(bodies, 0)
    assert declined.value.reason == "nothing-to-drop"


def test_a_view_within_its_goal_is_left_alone() -> None:
    with pytest.raises(Declined):
        recent(agent(6), 100_000)


def test_its_metadata_counts_messages() -> None:
    (strategy,) = stages_of("recent")
    view = view_of(agent(6))
    assert plan_of(strategy, view, BUDGET.with_goal(0)).metadata == {"droppedMessageCount": 10}
