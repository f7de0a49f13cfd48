"""What holds for every strategy that asks a model for a record."""

from typing import Any

import pytest

from strategies.core.budget import Budget
from strategies.core.effects import Ask
from strategies.core.errors import AnswerRefused, Declined, NothingToSummarize
from strategies.core.protocol import SessionFacts
from strategies.core.replacement import previous_text
from strategies.core.view import View
from tests.strategies.driving import condensed, failing, later, questions, stages_of
from tests.support.transcripts import Body, agent, chat, step, transcript_of, user, view_of

BUDGET = Budget.of(8_000).with_goal(3_000)
LONG = agent(60, size=60)
each_strategy = pytest.mark.parametrize("name", ["summary", "half-window", "semantic", "rolling", "dynacontext"])


def question(name: str, view: View, session: SessionFacts | None = None, **options: Any) -> Ask:
    """What a model is asked first."""
    (strategy,) = stages_of(name, **{name.replace("-", "_"): options})
    asked = questions(strategy.condense(view, BUDGET, session or SessionFacts()))
    assert len(asked) == 1
    assert isinstance(asked[0], Ask)
    return asked[0]


@each_strategy
def test_an_earlier_record_is_merged_into_the_new_one(name: str) -> None:
    before = condensed(name, view_of(LONG), BUDGET)
    more = [body for number in range(60, 120) for body in step(number, 60)]
    grown = later(before, transcript_of([*LONG, *more]))
    asked = question(name, grown)
    assert asked.user.startswith(f"<earlier_record>\n{previous_text(before)}\n</earlier_record>")
    assert '"step 2"' not in asked.user
    again = condensed(name, grown, BUDGET)
    assert sum(item.is_replacement for item in again.items) == 1
    assert again.covered_count > before.covered_count


@pytest.mark.parametrize("name", ["summary", "half-window", "semantic", "dynacontext"])
def test_a_model_may_be_asked_to_go_on_from_the_view(name: str) -> None:
    view = view_of(LONG)
    asked = question(name, view, SessionFacts(continue_view=True))
    assert asked.view is not None
    assert view.to_json().startswith(asked.view.rstrip("]"))
    assert "step 59" not in asked.view


@each_strategy
@pytest.mark.parametrize("bodies", [[user("a")], chat(1), agent(1)], ids=["question", "answered", "one round"])
def test_nothing_before_the_newest_round_is_nothing_to_summarize(name: str, bodies: list[Body]) -> None:
    with pytest.raises(NothingToSummarize):
        condensed(name, view_of(bodies), BUDGET)


@each_strategy
def test_a_window_without_room_for_a_record_is_declined(name: str) -> None:
    with pytest.raises(Declined, match="no-room"):
        condensed(name, view_of(LONG), Budget.of(400))


@pytest.mark.parametrize("name", ["summary", "half-window", "rolling", "dynacontext"])
def test_without_an_answer_nothing_is_done(name: str) -> None:
    with pytest.raises(AnswerRefused, match="summary-unreachable"):
        condensed(name, view_of(LONG), BUDGET, failing)
