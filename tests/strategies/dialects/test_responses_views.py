"""All strategies over conversations of the Responses API: the strict upstream takes every view."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from proxy.endpoints.responses import ResponsesCounter
from proxy.tokens import media
from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.plan import head_pieces, newest_is_shortened
from strategies.core.requirement import Requirement
from strategies.core.rounds import Round, newest_round
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.dialects.responses import RESPONSES
from strategies.pipeline import Outcome
from tests.strategies.driving import Reply, attempted
from tests.strategies.invariants import faults_beside_pairs
from tests.strategies.test_invariants import PIPELINES, STABLE, VIOLENT, replies, requests
from tests.support.responses_drafts import request_of, responses_conversations
from tests.support.responses_upstream import function_call, message, reasoning
from tests.support.strict_responses import refusal_of
from tests.support.transcripts import READER, WORDS

Body = dict[str, Any]
Request = tuple[Requirement, int, int]

COUNTER = ResponsesCounter("words", WORDS.text, media.media_prices("gpt-4o"))


def view_of(items: Sequence[Body], fixed: int) -> View:
    read = [READER.read(json.dumps(each, ensure_ascii=False), each, COUNTER.message(each), RESPONSES) for each in items]
    return fold(Transcript.of(read), (), fixed, COUNTER)


def judged(pipeline: str, items: Sequence[Body], request: Request, reply: Reply) -> Outcome | None:
    """The outcome of a pipeline; the upstream takes what it sends."""
    requirement, window, fixed = request
    view, budget = view_of(items, fixed), Budget.of(window)
    outcome: Outcome | None = None
    with suppress(StrategyError):
        outcome = attempted(requirement, pipeline, view, budget, reply)
    if outcome is None:
        return None
    again = attempted(requirement, pipeline, view, budget, reply)
    assert head_pieces(again.view) == head_pieces(outcome.view)
    assert outcome.view.tokens < view.tokens
    assert faults_beside_pairs(outcome.view, budget, shortened=newest_is_shortened(outcome.view)) == []
    assert refusal_of(request_of(json.loads(outcome.view.to_json()))) is None
    return outcome


def test_all_items_of_a_reply_and_their_outputs_are_one_round() -> None:
    calls = [{"call_id": one, **function_call("read", {})} for one in ("a", "b")]
    outputs = [{"type": "function_call_output", "call_id": one, "output": "ok"} for one in ("b", "a")]
    items = [
        {"role": "user", "content": "Look."},
        reasoning("Hm."),
        *calls,
        *outputs,
        reasoning("So."),
        message("Done."),
    ]
    view = view_of(items, 0)
    assert view.structure.rounds == [Round(1, 6), Round(6, 8)]
    assert [place for place, is_cut in enumerate(view.structure.cuts) if is_cut] == [0, 1, 6, 8]
    assert newest_round(view.transcript.chain) == Round(6, 8)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(items=responses_conversations(), request=requests, reply=replies)
@STABLE
def test_the_upstream_takes_every_view(pipeline: str, items: list[Body], request: Request, reply: Reply) -> None:
    judged(pipeline, items, request, reply)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_upstream_takes_every_view_of_many_conversations(pipeline: str) -> None:
    @given(items=responses_conversations(at_most=60), request=requests, reply=replies)
    @VIOLENT
    def check(items: list[Body], request: Request, reply: Reply) -> None:
        judged(pipeline, items, request, reply)

    check()
