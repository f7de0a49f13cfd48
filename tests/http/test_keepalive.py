"""Keep-alive: nothing leaves before the upstream's own head, and pauses behind it are filled."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPResponse
from typing import Any

import pytest
from openai import OpenAI

from tests.http.test_search_memory import FOUND, question, remembering
from tests.support import replies, wire
from tests.support.recording import CHAT
from tests.support.replies import DONE, Reply
from tests.support.searching import TOOL, assembled, reply_of, search
from tests.support.signals import BOUND, Signal
from tests.support.stage import Stage, body_of, chat, controls, is_own, proxy_with_upstream, summary

SOON = 0.01
COMMENT = b": keep-alive\n\n"
FORCE = ("X-Condenser-Force", "true")
LONG = body_of(chat(12), stream=True)
SAID = replies.text_chunks("one two")
STREAM = b"".join(map(replies.sse, SAID)) + DONE


def paused(gate: Signal, **headers: str) -> Reply:
    """A stream that pauses after its first words until the signal."""
    reply = replies.stream(*SAID)
    return replace(reply, headers=(*reply.headers, *headers.items()), steps=(*reply.steps[:2], gate, *reply.steps[2:]))


def heard_thrice(response: HTTPResponse) -> bytes:
    """What has come when it ends in three comments."""
    told = b""
    while not told.endswith(3 * COMMENT):
        told += response.readline()
    return told


@contextmanager
def streaming(stage: Stage, body: bytes, *more: tuple[str, str]) -> Iterator[HTTPResponse]:
    headers = [*wire.JSON, ("Authorization", "Bearer sk-first"), *controls(session="s"), *more]
    with wire.opened(stage.proxy.url, "POST", CHAT, body, headers) as response:
        yield response


@pytest.mark.parametrize(
    "reply",
    [replies.error(429, "slow down", code="rate", headers=[("retry-after", "3")]), replies.raw(b"Bad", status=502)],
    ids=["in OpenAI's form", "in another"],
)
def test_an_error_after_a_wait_for_a_summary_keeps_its_status(reply: Reply) -> None:
    """Another client, whose stream pauses behind its head, hears thrice meanwhile."""
    gate, summarized = Signal("the stream may go on"), Signal("the summarizer may answer")
    with proxy_with_upstream(keepalive_interval=SOON, strategy="half-window") as stage:
        stage.upstream.answer(
            lambda exchange: (
                summary().after(summarized)
                if is_own(exchange)
                else paused(gate)
                if b"And who are you?" in exchange.body
                else reply
            )
        )
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(stage.post, LONG, [FORCE])
            stage.upstream.journal.await_arrival()
            with streaming(stage, body_of([{"role": "user", "content": "And who are you?"}], stream=True)) as heard:
                heard_thrice(heard)
                summarized.set()
                answer = waiting.result(BOUND)
                gate.set()
                assert heard.read().endswith(DONE)
        assert (answer.status, answer.body) == (reply.status, reply.steps[0])


def test_comments_follow_the_upstreams_own_head_and_headers() -> None:
    gate = Signal("the rest may come")
    with proxy_with_upstream(keepalive_interval=SOON) as stage:
        stage.upstream.reply(paused(gate, **{"x-request-id": "1"}))
        with streaming(stage, LONG) as response:
            assert (response.getheader("x-request-id"), response.getheader("x-condenser-action")) == ("1", "condensed")
            told = heard_thrice(response)
            gate.set()
            assert (told + response.read()).replace(COMMENT, b"") == STREAM


@pytest.mark.parametrize("name", ["strategy off", "keepalive_interval = 0"])
def test_who_wants_no_comments_gets_none(name: str) -> None:
    """Another stream, which pauses as long, has had three."""
    gate, interval = Signal("the events may come"), 0.0 if name == "keepalive_interval = 0" else SOON
    with (
        proxy_with_upstream(keepalive_interval=interval) as stage,
        proxy_with_upstream(keepalive_interval=SOON) as other,
    ):
        for each in (stage, other):
            each.upstream.reply(paused(gate))
        with streaming(stage, LONG, *(controls(strategy="off") if interval else ())) as quiet:
            with streaming(other, LONG) as heard:
                heard_thrice(heard)
                gate.set()
            assert quiet.read() == STREAM


def test_while_the_memory_tool_asks_again_comments_flow_between_events() -> None:
    gate = Signal("the second answer may come")
    usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
    with remembering(keepalive_interval=SOON) as stage:
        stage.upstream.reply(
            reply_of("Let me look.", search(), streamed=True), reply_of(FOUND, streamed=True).after(gate)
        )
        body = body_of(question(), stream=True, **usage)
        with streaming(stage, body, TOOL) as response:
            told = heard_thrice(response)
            gate.set()
            *chunks, done = wire.events(told + response.read())
        assert assembled([json.loads(each) for each in chunks])["content"] == "Let me look." + FOUND
        assert done == "[DONE]"


def test_the_python_client_reads_past_comments_in_the_middle() -> None:
    """Another stream has had three since the client's paused."""
    gate = Signal("the rest may come")
    with (
        proxy_with_upstream(keepalive_interval=SOON, strategy="recent") as stage,
        OpenAI(base_url=stage.proxy.base_url, api_key="sk-1") as client,
    ):
        stage.upstream.answer(lambda _: paused(gate))
        messages: Any = chat(1)
        chunks = client.chat.completions.create(model="scripted-1", messages=messages, stream=True)
        said = [next(chunks).choices[0].delta.content or ""]
        with streaming(stage, LONG) as heard:
            heard_thrice(heard)
            gate.set()
        said += [each.choices[0].delta.content or "" for each in chunks]
    assert "".join(said) == "one two"


def test_for_a_client_that_leaves_while_it_waits_nothing_is_forwarded() -> None:
    gate = Signal("the summarizer may answer")
    with proxy_with_upstream(
        keepalive_interval=SOON, strategy="half-window", answers=lambda _: summary().after(gate)
    ) as stage:
        with wire.sent(stage.proxy.url, "POST", CHAT, LONG, [*wire.JSON, FORCE]):
            stage.upstream.journal.await_arrival()
        stage.proxy.served()
        gate.set()
        stage.proxy.quiet()
        assert stage.forwarded == []
