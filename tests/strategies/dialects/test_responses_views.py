"""All strategies over conversations of the Responses API: the strict upstream takes every view."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given

from proxy.protocols.responses import ResponsesCounter
from proxy.tokens import media
from strategies.core.condensation import shows_protected_messages
from strategies.core.messages import dump
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.rounds import Round, newest_round
from strategies.core.view import View, fold
from strategies.dialects.responses import RESPONSES
from tests.strategies.dialects.views import Request, list_sent, view_in
from tests.strategies.driving import Reply
from tests.strategies.test_invariants import FEWER, PIPELINES, VIOLENT, replies, requests
from tests.support.responses_drafts import request_of, responses_conversations
from tests.support.responses_upstream import function_call, message, reasoning
from tests.support.strict_responses import refusal_of
from tests.support.transcripts import WORDS

Body = dict[str, Any]

COUNTER = ResponsesCounter("words", WORDS.text, media.media_prices("gpt-4o"))


def view_of(items: Sequence[Body], fixed: int) -> View:
    return view_in(RESPONSES, COUNTER, items, fixed)


def check(pipeline: str, items: Sequence[Body], request: Request, reply: Reply) -> None:
    """The upstream takes what is sent."""
    sent = list_sent(pipeline, view_of(items, request[2]), request, reply)
    assert sent is None or refusal_of(request_of(sent)) is None


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


def test_no_cut_is_inside_of_a_program_or_a_pair_of_an_unknown_type() -> None:
    def nested(one: str) -> list[Body]:
        call = {"call_id": one, **function_call("read", {}), "caller": {"type": "program", "caller_id": "p"}}
        return [reasoning("Hm."), call, {"type": "function_call_output", "call_id": one, "output": "ok"}]

    program = {"type": "program", "call_id": "p", "fingerprint": "f", "code": "x"}
    items = [
        {"role": "user", "content": "Look."},
        program,
        *nested("a"),
        *nested("b"),
        {"type": "program_output", "call_id": "p", "output": "ok"},
        {"type": "new_call", "call_id": "n"},
        {"call_id": "c", **function_call("read", {})},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        message("So."),
        {"type": "new_call_output", "call_id": "n"},
    ]
    cuts = view_of(items, 0).structure.cuts
    assert [place for place, is_cut in enumerate(cuts) if is_cut] == [0, 1, 9, 14]
    running = view_of(items[:8], 0).structure.cuts
    assert [place for place, is_cut in enumerate(running) if is_cut] == [0, 1, 8]


def test_a_record_that_parts_an_output_from_one_of_several_calls_is_not_applied() -> None:
    calls = [{"call_id": one, **function_call("read", {})} for one in "abc"]
    outputs = [{"type": "function_call_output", "call_id": one, "output": "ok"} for one in "cab"]
    done = [message("Done."), {"role": "user", "content": "And now?"}]
    transcript = view_of([{"role": "user", "content": "Look."}, *calls, *outputs, *done], 0).transcript
    record = Literal(dump(RESPONSES.user("A record.")), PieceKind.REPLACEMENT)
    applied = [
        shows_protected_messages(
            fold(transcript, (Overlay(transcript.digests[end - 1], end, end, (Keep(0), record)),), 0, COUNTER)
        )
        for end in range(1, 8)
    ]
    assert applied == [True, False, False, False, False, False, True]


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(items=responses_conversations(), request=requests, reply=replies)
@FEWER
def test_the_upstream_takes_every_view(pipeline: str, items: list[Body], request: Request, reply: Reply) -> None:
    check(pipeline, items, request, reply)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_upstream_takes_every_view_of_many_conversations(pipeline: str) -> None:
    given(items=responses_conversations(at_most=60), request=requests, reply=replies)(
        VIOLENT(lambda items, request, reply: check(pipeline, items, request, reply))
    )()
