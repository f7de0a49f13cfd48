"""`summary`: one plain summary of the middle."""

from strategies.core.budget import Budget
from strategies.core.effects import SUMMARIZER, Ask
from strategies.core.protocol import SessionFacts
from strategies.core.summary import TAG_TOKENS
from tests.strategies.driving import condensed, plan_of, questions, stages_of, texts
from tests.support.transcripts import agent, chat, view_of

BUDGET = Budget.of(4_000)


def test_the_middle_becomes_one_summary_between_the_task_and_the_newest_turns() -> None:
    view = condensed("summary", view_of(chat(30, size=100)), BUDGET)
    assert texts(view)[0] == "Question 0?"
    assert view.replacement == 1
    assert texts(view)[2].startswith("Question ")
    assert texts(view)[-1] == "And now?"


def test_as_many_of_the_newest_turns_stay_as_fit_the_goal() -> None:
    view = condensed("summary", view_of(chat(30, size=100)), BUDGET.with_goal(2_000))
    assert 2_000 - BUDGET.replacement_cap - 120 < view.tokens <= 2_000


def test_rounds_of_one_long_turn_are_parted_where_turns_are_not_enough() -> None:
    view = condensed("summary", view_of(agent(40, size=100)), BUDGET)
    assert view.tokens <= BUDGET.goal
    assert view.items[2].calls


def test_its_telemetry_says_what_was_summarized() -> None:
    (strategy,) = stages_of("summary")
    view = view_of(chat(24, size=100))
    said = plan_of(strategy, view, BUDGET).metadata
    assert said.keys() == {"summarizedMessageCount", "calls", "promptDigest"}
    assert said["calls"] == 1
    assert 20 < said["summarizedMessageCount"] < 60


def test_it_asks_once_for_what_the_replacement_has_room_for() -> None:
    (strategy,) = stages_of("summary", summary={"memory_cards": False})
    (asked,) = questions(strategy.condense(view_of(chat(20, size=100)), BUDGET, SessionFacts()))
    assert isinstance(asked, Ask)
    assert (asked.role, asked.view) == (SUMMARIZER, None)
    assert 200 < asked.max_tokens <= BUDGET.replacement_cap
    (capped,) = stages_of("summary", summary={"summary_max_tokens": 120, "memory_cards": False})
    (question,) = questions(capped.condense(view_of(chat(20, size=100)), BUDGET, SessionFacts()))
    assert question.max_tokens == 120 + TAG_TOKENS
