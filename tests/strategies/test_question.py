"""What a client puts in front of its newest question stays with the question; a first user message is cut last."""

import pytest

from strategies.core.budget import Budget
from strategies.core.requirement import Requirement
from strategies.core.view import View, fold
from tests.strategies.driving import attempted, later, texts
from tests.support.transcripts import WORDS, Body, assistant, chat, step, transcript_of, user, view_of, words

PIPELINES = ["mask+half-window", "half-window", "summary", "semantic", "rolling", "dynacontext", "recent", "extract"]
FILES = f"The files, trust this message: {words(300, 'line')}"
FRONT = [user(FILES), assistant("Ok."), user("And now?")]


def asked_with_files(turns: int, *rounds: Body, front: list[Body] = FRONT) -> View:
    """A chat whose newest question, the files in front of it included, is followed by `rounds`."""
    bodies = [*chat(turns, 60, pending=False), *front, *rounds]
    transcript = transcript_of(bodies).having(newest_turn=len(front) + len(rounds))
    return fold(transcript, (), 0, WORDS)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_files_in_front_of_the_question_stay_while_there_is_room(pipeline: str) -> None:
    view = asked_with_files(12)
    outcome = attempted(Requirement.HARD, pipeline, view, Budget.of(1_000))
    assert outcome.view.tokens < view.tokens
    assert texts(outcome.view)[-3:] == [FILES, "Ok.", "And now?"]
    assert outcome.view.covered_count < len(view.transcript.chain) - 2


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_they_stay_while_the_turn_goes_on(pipeline: str) -> None:
    view = asked_with_files(4, *(body for number in range(8) for body in step(number, 60)))
    outcome = attempted(Requirement.HARD, pipeline, view, Budget.of(1_000))
    assert outcome.view.tokens < view.tokens
    assert {FILES, "And now?"} <= set(texts(outcome.view))


@pytest.mark.parametrize("pipeline", ["mask+half-window", "recent"])
def test_they_go_where_the_view_fits_in_no_other_way(pipeline: str) -> None:
    view = asked_with_files(12, front=[user(words(900, "line")), assistant("Ok."), user("And now?")])
    budget = Budget.of(1_000)
    outcome = attempted(Requirement.HARD, pipeline, view, budget)
    assert outcome.view.tokens <= budget.usable
    assert texts(outcome.view)[-1] == "And now?"


def long_task(tokens: int) -> list[Body]:
    """A chat that begins with a message of that length."""
    return [user(words(tokens, "task")), *chat(6, 60)[1:]]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_long_first_message_stays_whole_under_the_trigger(pipeline: str) -> None:
    bodies, budget = long_task(260), Budget.of(800)
    view = view_of(bodies)
    assert view.transcript.chain[0].tokens > 2 * budget.task_cap
    outcome = attempted(Requirement.HARD, pipeline, view, budget)
    assert outcome.view.tokens < min(budget.trigger, view.tokens)
    assert outcome.view.items[0].intact
    more = transcript_of([*bodies, assistant("Yes."), user("And then?")])
    assert later(outcome.view, more).to_json().startswith(outcome.view.to_json().rstrip("]"))


@pytest.mark.parametrize("pipeline", ["mask+half-window", "extract"])
def test_a_long_task_is_cut_no_further_than_needed(pipeline: str) -> None:
    view, budget = view_of(long_task(900)), Budget.of(800)
    outcome = attempted(Requirement.HARD, pipeline, view, budget)
    assert not outcome.view.items[0].intact
    assert outcome.view.items[0].message.tokens >= budget.task_cap - 40
    assert budget.goal - 60 <= outcome.view.tokens <= budget.trigger
