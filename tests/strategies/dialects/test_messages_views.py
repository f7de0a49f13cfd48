"""All strategies over conversations of the Messages API: the strict upstream takes every view."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given

from proxy.endpoints.messages import MessagesCounter
from proxy.tokens import media
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
