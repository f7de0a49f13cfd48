"""Keep-alive: the client of a stream hears that it is waited for, and gets behind that whatever there is to get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPResponse
from itertools import pairwise
from typing import Any

import pytest

from tests.http.test_search_memory import FOUND, question
from tests.support import replies, wire
from tests.support.proxy import Proxy, proxying
from tests.support.recording import CHAT, Exchange
from tests.support.replies import DONE, Reply
from tests.support.searching import TOOL, answered, assembled, search
from tests.support.signals import BOUND, Signal
from tests.support.stage import SUMMARY, WINDOW, Stage, asked, body_of, chat, count, is_own, staged, summary

SOON = 0.01
LATER = 0.5
"""Seconds in which a request that nobody is asked for is decided on, on a busy machine too."""
COMMENT = b": keep-alive\n\n"
FORCE = ("X-Condenser-Force", "true")
HI = b'{"model":"scripted-1","stream":true,"messages":[{"role":"user","content":"hi"}]}'
PLAIN = body_of(chat(12))
LONG = body_of(chat(12), stream=True)
SAID = replies.text_chunks("one two")
STREAM = b"".join(map(replies.sse, SAID)) + DONE


@contextmanager
def waiting(proxy: Proxy, body: bytes = LONG, *more: tuple[str, str]) -> Iterator[HTTPResponse]:
    """A response of which the head and one comment have come, while it is condensed."""
    headers = [*wire.JSON, ("Authorization", "Bearer sk-first"), *asked(session="s"), FORCE, *more]
    with wire.opened(proxy.url, "POST", CHAT, body, headers) as response:
        assert response.status == 200
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.getheader("x-condenser-action") == "pending"
        assert response.read(len(COMMENT)) == COMMENT
        yield response


def rest_of(response: HTTPResponse) -> bytes:
    """All that comes behind the comments."""
    data = response.read()
    while data.startswith(COMMENT):
        data = data.removeprefix(COMMENT)
    return data


@contextmanager
def silent(reply: Reply, interval: float = SOON, **settings: Any) -> Iterator[tuple[Stage, Signal]]:
    """A stage on which everybody waits for a summary, and the upstream for its reply, until the signal is set."""
    gate = Signal("the summarizer and the upstream may answer")
    with staged(keepalive_interval=interval, strategy="half-window", **settings) as stage:
        stage.upstream.answer(lambda exchange: (summary() if is_own(exchange) else reply).after(gate))
        try:
            yield stage, gate
        finally:
            gate.set()


def test_while_a_summary_is_written_comments_flow_and_the_reply_follows_them() -> None:
    with silent(replies.stream(*SAID)) as (stage, gate):
        with waiting(stage.proxy, LONG, ("Accept-Encoding", "gzip")) as response:
            assert response.getheader("x-condenser-tokens-after") is None
            stage.upstream.journal.await_arrival()
            gate.set()
            assert rest_of(response) == STREAM
        assert any(SUMMARY in str(each["content"]) for each in stage.last_view)
        # No encoding could be told any more.
        assert stage.forwarded[-1].header("accept-encoding") is None
        again = stage.ask([*chat(12), {"role": "assistant", "content": "one two"}, chat(1)[-1]], asked(session="s"))
        assert again.header("x-condenser-action") == "replayed"


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        (replies.error(429, "slow down", code="rate"), replies.error_body("slow down", code="rate")),
        (
            replies.raw(b"Bad\ngateway", "text/plain", status=502),
            replies.error_body("The upstream answered 502: Bad\ngateway", type="upstream_error", code="upstream_error"),
        ),
        (
            replies.hang_up(),
            replies.error_body(
                "The upstream broke off the connection.", type="upstream_error", code="upstream_unreachable"
            ),
        ),
        (
            Reply(200, (("content-type", "application/json"), ("content-length", "9")), (b"{",), cut=True),
            replies.error_body(
                "The upstream broke off in the middle of its reply.", type="upstream_error", code="upstream_unreachable"
            ),
        ),
    ],
    ids=["in OpenAI's form", "in another", "no answer", "half an answer"],
)
def test_an_error_behind_comments_is_one_event_and_no_done(reply: Reply, event: dict[str, Any]) -> None:
    with silent(reply) as (stage, gate), waiting(stage.proxy) as response:
        gate.set()
        said = rest_of(response)
    assert b"[DONE]" not in said
    assert [json.loads(each) for each in wire.events(said)] == [event]


def test_an_error_of_ours_behind_comments_is_one_event_too() -> None:
    gate = Signal("the summarizer may answer")
    with staged(keepalive_interval=SOON, strategy="half-window", answers=lambda _: summary().after(gate)) as stage:
        messages = [*chat(20), {"role": "user", "content": "word " * 9_000}]
        with waiting(stage.proxy, body_of(messages, stream=True)) as response:
            gate.set()
            [data] = wire.events(rest_of(response))
        assert '"context_length_exceeded"' in data
        assert stage.forwarded == []


def test_an_error_in_time_keeps_its_status() -> None:
    with silent(replies.error(429, headers=[("retry-after", "3")]), 60.0) as (stage, gate):
        gate.set()
        answer = stage.post(HI)
        assert (answer.status, answer.header("retry-after")) == (429, "3")


def test_an_upstream_whose_first_event_is_slow_is_waited_for_under_its_own_head() -> None:
    first, gate = replies.stream(*SAID), Signal("the first event may come")
    slow = replace(first, headers=(*first.headers, ("x-request-id", "1")), steps=(gate, *first.steps))
    with staged(keepalive_interval=LATER, strategy="half-window") as stage, ThreadPoolExecutor(1) as pool:
        stage.upstream.answer(lambda exchange: summary().after(gate) if is_own(exchange) else slow)
        waits = pool.submit(stage.post, body_of(chat(6), stream=True))
        stage.upstream.journal.await_arrival()
        with waiting(stage.proxy) as heard:
            assert heard.read(len(COMMENT)) == COMMENT
            gate.set()
            answer = waits.result(BOUND)
        assert (answer.header("x-request-id"), answer.header("x-condenser-action")) == ("1", "passed")
        assert answer.body.endswith(STREAM)


def test_a_whole_completion_behind_comments_becomes_events() -> None:
    with silent(replies.completion("not streamed")) as (stage, gate), waiting(stage.proxy) as response:
        gate.set()
        chunk, done = wire.events(rest_of(response))
    assert json.loads(chunk)["choices"][0]["delta"]["content"] == "not streamed"
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("body", "headers", "settings"),
    [
        (PLAIN, [FORCE], {}),
        (LONG, [FORCE], {"keepalive": "off"}),
        (HI, [], {}),
        (HI, asked(strategy="off"), {}),
    ],
    ids=["not streamed", "keepalive = off", "nothing but the upstream to wait for", "strategy off"],
)
def test_who_is_to_hear_nothing_waits_as_ever(
    body: bytes, headers: list[tuple[str, str]], settings: dict[str, Any]
) -> None:
    """Another client, who does hear, has come later and has heard thrice."""
    with silent(replies.error(503), **settings) as (stage, gate), ThreadPoolExecutor(1) as pool:
        quiet = pool.submit(stage.post, body, headers)
        stage.upstream.journal.await_arrival()
        known: dict[str, Any] = {"window": WINDOW, "strategy": "half-window", "keepalive_interval": SOON}
        with proxying(stage.upstream.url, **known) as other, waiting(other) as heard:
            assert heard.read(2 * len(COMMENT)) == 2 * COMMENT
        gate.set()
        assert quiet.result(BOUND).status == 503


def test_the_retry_after_an_overflow_is_still_made_behind_comments() -> None:
    gate = Signal("the summarizer may answer")

    def narrow(exchange: Exchange) -> Reply | None:
        if is_own(exchange):
            return summary().after(gate)
        used = count(exchange.json())
        return replies.overflow(4_096, used) if used > 4_096 else replies.stream(*SAID)

    with staged(window=None, keepalive_interval=SOON, strategy="half-window") as stage:
        stage.upstream.answer(narrow)
        with waiting(stage.proxy, body_of(chat(60), stream=True)) as response:
            gate.set()
            assert rest_of(response) == STREAM
        assert len(stage.forwarded) == 2


def test_the_retry_after_an_overflow_that_was_told_in_another_form_is_made_behind_comments() -> None:
    gate, overflown = Signal("what is made of the overflow may come"), list[int]()

    def narrow(exchange: Exchange) -> Reply | None:
        if is_own(exchange):
            return summary().after(gate) if overflown else summary()
        roles = [message["role"] for message in exchange.json()["messages"]]
        if any(one == other for one, other in pairwise(roles)):
            return replies.error(400, "Conversation roles must alternate user/assistant/user/assistant/...")
        used = count(exchange.json())
        if used <= 4_096:
            return replies.stream(*SAID)
        overflown.append(used)
        return replies.overflow(4_096, used)

    with staged(window=16_384, keepalive_interval=LATER, strategy="half-window") as stage:
        stage.upstream.answer(narrow)
        with waiting(stage.proxy, body_of(chat(60), stream=True)) as response:
            assert overflown
            gate.set()
            assert rest_of(response) == STREAM
        assert len(stage.forwarded) == 3


def test_hidden_rounds_are_held_behind_comments() -> None:
    gate = Signal("the summarizer may answer")
    with staged(keepalive_interval=SOON, strategy="half-window", answers=lambda _: summary().after(gate)) as stage:
        stage.upstream.reply(answered(None, search(), streamed=True), answered(FOUND, streamed=True))
        body = body_of(question(), stream=True, stream_options={"include_usage": True})
        with waiting(stage.proxy, body, TOOL) as response:
            gate.set()
            *chunks, done = wire.events(rest_of(response))
        assert assembled([json.loads(each) for each in chunks])["content"] == FOUND
        assert done == "[DONE]"
        assert len(stage.forwarded) == 2


def test_for_a_client_that_leaves_among_comments_nothing_is_forwarded() -> None:
    with silent(replies.stream(*SAID)) as (stage, gate):
        with waiting(stage.proxy):
            stage.upstream.journal.await_arrival()
        stage.proxy.served()
        gate.set()
        stage.proxy.quiet()
        assert stage.forwarded == []


def test_the_form_of_a_chunk_is_the_setting_s() -> None:
    slow = silent(replies.stream(*SAID), keepalive="chunk")
    with slow as (stage, gate), wire.opened(stage.proxy.url, "POST", CHAT, LONG, [*wire.JSON, FORCE]) as response:
        assert json.loads(response.readline().removeprefix(b"data: "))["choices"][0]["delta"] == {}
        gate.set()
        assert response.read().endswith(STREAM)
