"""All strategies over conversations of the Messages API: the strict upstream takes every view."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given

from proxy.protocols.messages import MessagesCounter
from proxy.tokens import media
from strategies.core.condensation import shows_protected_messages
from strategies.core.messages import dump
from strategies.core.pieces import Keep, Literal, Overlay, PieceKind
from strategies.core.rounds import Round
from strategies.core.view import View, fold
from strategies.dialects.messages import MESSAGES
from tests.strategies.dialects.views import Request, list_sent, view_in
from tests.strategies.driving import Reply
from tests.strategies.test_invariants import FEWER, PIPELINES, VIOLENT, replies, requests
from tests.support.messages_drafts import messages_conversations, request_of
from tests.support.strict_messages import refusal_of
from tests.support.transcripts import WORDS

Body = dict[str, Any]

COUNTER = MessagesCounter("words", WORDS.text, media.media_prices("gpt-4o"))


def view_of(messages: Sequence[Body], fixed: int) -> View:
    return view_in(MESSAGES, COUNTER, messages, fixed)


def check(pipeline: str, messages: Sequence[Body], request: Request, reply: Reply) -> None:
    """The upstream takes what is sent with all thinking left out that is bound to what was there."""
    sent = list_sent(pipeline, view_of(messages, request[2]), request, reply)
    assert sent is None or refusals(sent) == []


def refusals(sent: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the upstream refuses of a list: as it is where nothing is bound, and without thinking where it is."""
    bare = [MESSAGES.unbound(each) for each in sent]
    return [said for said in (refusal_of(request_of(sent), bound=False), refusal_of(request_of(bare))) if said]


def test_condensed_systems_follow_the_last_user_of_the_head() -> None:
    said: list[Body] = [
        {"role": "user", "content": "Mend the parser."},
        {"role": "assistant", "content": "I look."},
        {"role": "user", "content": "And the tests."},
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "Go on."},
    ]
    transcript = view_of(said, 0).transcript
    record = Literal(dump(MESSAGES.user("A record.")), PieceKind.REPLACEMENT)
    head = Overlay(transcript.digests[2], 3, 3, (Keep(0), record, Keep(1)))
    sent = json.loads(fold(transcript, (head,), 0, COUNTER).to_json())
    assert sent == [said[0], MESSAGES.user("A record."), said[3], said[1], *said[4:]]
    assert refusal_of(request_of(sent)) == ""


def test_neighbouring_replies_are_one_round() -> None:
    paused = [{"role": "assistant", "content": "I search."}, {"role": "assistant", "content": "Found."}]
    view = view_of([{"role": "user", "content": "Search."}, *paused, {"role": "user", "content": "Go on."}], 0)
    assert view.structure.rounds == [Round(1, 3)]
    assert view.structure.cuts == [True, True, False, True, True]


def _use(one: str, kind: str = "tool_use", caller: str = "") -> Body:
    inside = {"caller": {"type": "code_execution_20260120", "tool_id": caller}} if caller else {}
    return {"type": kind, "id": one, "name": "read", "input": {}, **inside}


def _ended(one: str, kind: str = "tool_result") -> Body:
    return {"type": kind, "tool_use_id": one, "content": "ok"}


def _server_tool(one: str, *, is_inside: bool) -> list[Body]:
    """A server's tool that waits for two rounds of the client's, and its end with a third call."""
    caller = f"s{one}" if is_inside else ""
    return [
        {"role": "assistant", "content": [_use(f"s{one}", "server_tool_use"), _use(f"a{one}", caller=caller)]},
        {"role": "user", "content": [_ended(f"a{one}")]},
        {"role": "assistant", "content": [_use(f"b{one}", caller=caller)]},
        {"role": "user", "content": [_ended(f"b{one}")]},
        {"role": "assistant", "content": [_ended(f"s{one}", "code_execution_tool_result"), _use(f"c{one}")]},
        {"role": "user", "content": [_ended(f"c{one}")]},
    ]


@pytest.mark.parametrize("is_inside", [True, False])
def test_no_cut_is_between_a_server_tool_and_its_result_however_many_rounds_are(is_inside: bool) -> None:
    said = [{"role": "user", "content": "Go."}, *_server_tool("1", is_inside=is_inside)]
    assert [place for place, is_cut in enumerate(view_of(said, 0).structure.cuts) if is_cut] == [0, 1, 7]
    assert [tuple(each) for each in view_of(said, 0).structure.rounds] == [(1, 3), (3, 5), (5, 7)]
    running = view_of(said[:5], 0).structure.cuts
    assert [place for place, is_cut in enumerate(running) if is_cut] == ([0, 1, 5] if is_inside else [0, 1, 3, 5])


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("covered", [3, 5, 9, 11])
def test_a_record_that_parts_a_server_tool_from_its_result_is_not_applied(covered: int, is_inside: bool) -> None:
    pairs = [each for one in "123" for each in _server_tool(one, is_inside=is_inside)]
    transcript = view_of([{"role": "user", "content": "Go."}, *pairs], 0).transcript
    record = Literal(dump(MESSAGES.user("A record.")), PieceKind.REPLACEMENT)
    torn, sound = (
        fold(transcript, (Overlay(transcript.digests[end - 1], end, end, (Keep(0), record)),), 0, COUNTER)
        for end in (covered, 7)
    )
    assert (shows_protected_messages(torn), shows_protected_messages(sound)) == (False, True)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(messages=messages_conversations(), request=requests, reply=replies)
@FEWER
def test_the_upstream_takes_every_view(pipeline: str, messages: list[Body], request: Request, reply: Reply) -> None:
    check(pipeline, messages, request, reply)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_upstream_takes_every_view_of_many_conversations(pipeline: str) -> None:
    given(messages=messages_conversations(at_most=60), request=requests, reply=replies)(
        VIOLENT(lambda messages, request, reply: check(pipeline, messages, request, reply))
    )()
