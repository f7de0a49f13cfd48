"""`summary`: one plain summary of the middle."""

from __future__ import annotations

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import SUMMARIZER, Ask
from strategies.core.errors import AnswerRefused, Declined, NothingToSummarize
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import previous_text
from tests.strategies.driving import condensed, failing, later, plan_of, questions, stages_of, texts
from tests.support.transcripts import Body, agent, assistant, chat, transcript_of, user, view_of

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


def test_it_asks_once_for_what_the_replacement_has_room_for() -> None:
    (strategy,) = stages_of("summary", summary={"memory_cards": False})
    (asked,) = questions(strategy.condense(view_of(chat(20, size=100)), BUDGET, SessionFacts()))
    assert isinstance(asked, Ask)
    assert (asked.role, asked.view) == (SUMMARIZER, None)
    assert 300 < asked.max_tokens <= BUDGET.replacement_cap
    (capped,) = stages_of("summary", summary={"summary_max_tokens": 120, "memory_cards": False})
    (question,) = questions(capped.condense(view_of(chat(20, size=100)), BUDGET, SessionFacts()))
    assert question.max_tokens == 120


def test_an_earlier_summary_is_merged_into_the_new_one() -> None:
    bodies = chat(20, size=100)
    before = condensed("summary", view_of(bodies), BUDGET)
    grown = later(before, transcript_of([*bodies, assistant("So."), *chat(20, size=100)[1:]]))
    (strategy,) = stages_of("summary")
    (asked,) = questions(strategy.condense(grown, BUDGET, SessionFacts()))
    assert isinstance(asked, Ask)
    assert asked.user.startswith(f"<earlier_record>\n{previous_text(before)}\n")
    again = condensed("summary", grown, BUDGET)
    assert sum(item.is_replacement for item in again.items) == 1
    assert again.covered_count > before.covered_count


def test_a_model_may_be_asked_to_go_on_from_the_view() -> None:
    (strategy,) = stages_of("summary")
    view = view_of(chat(20, size=100))
    (asked,) = questions(strategy.condense(view, BUDGET, SessionFacts(continue_view=True)))
    assert isinstance(asked, Ask)
    assert asked.view is not None
    assert view.to_json().startswith(asked.view.rstrip("]"))


@pytest.mark.parametrize("bodies", [[user("a")], chat(1), agent(1)])
def test_nothing_before_the_newest_round_is_nothing_to_summarize(bodies: list[Body]) -> None:
    with pytest.raises(NothingToSummarize):
        condensed("summary", view_of(bodies), BUDGET)


def test_without_room_or_an_answer_nothing_is_done() -> None:
    with pytest.raises(Declined, match="no-room"):
        condensed("summary", view_of(chat(20)), Budget.of(600))
    with pytest.raises(AnswerRefused, match="summary-unreachable"):
        condensed("summary", view_of(chat(30, size=100)), BUDGET, failing)


def test_its_telemetry_says_what_was_summarized() -> None:
    (strategy,) = stages_of("summary")
    view = view_of(chat(24, size=100))
    said = plan_of(strategy, view, BUDGET).metadata
    assert said.keys() == {"summarizedMessageCount", "calls", "promptDigest"}
    assert said["calls"] == 1
    assert 20 < said["summarizedMessageCount"] < 60
