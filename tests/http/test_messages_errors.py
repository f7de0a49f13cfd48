"""What goes wrong under the Messages API: long prompts are healed, all else is told in the form of the vendor."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.http.test_messages import HEADERS, PING, Agent, Json, client_bodies, long_turns, reader, said_in
from tests.support import wire
from tests.support.messages_upstream import MESSAGES, StrictMessages, count, error, events, text
from tests.support.prefixes import event
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply, json_reply, stream

NARROW = 12_000
ENOUGH = 1_000
"""The `max_tokens` of an agent."""


def plain(used: int) -> Reply:
    return json_reply(error(f"prompt is too long: {used} tokens > {NARROW} maximum"), status=400)


def with_the_reply(used: int) -> Reply:
    said = f"input length and `max_tokens` exceed context limit: {used} + {ENOUGH} > {NARROW}, decrease input length"
    return json_reply(error(f"{said} or `max_tokens` and try again"), status=400)


def as_an_event(used: int) -> Reply:
    return stream(event(error(f"prompt is too long: {used} tokens > {NARROW} maximum")), done=False)


def after_the_greeting(used: int) -> Reply:
    *greeting, _ = opening(used)
    return stream(*greeting, PING, *as_an_event(used).steps, done=False)


def opening(used: int = 1) -> list[bytes]:
    """The first events of a reply: its start, a ping, and the start of a text."""
    usage = {"input_tokens": used, "output_tokens": 1}
    message: Json = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [text("one two")]}
    return list(events({**message, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}))[:3]


REFUSALS = [plain, with_the_reply, as_an_event, after_the_greeting]


@contextmanager
def narrow(refusal: Callable[[int], Reply], **settings: Any) -> Iterator[tuple[StrictMessages, Proxy]]:
    """A proxy that knows no window, before an upstream that refuses what is longer than `NARROW`."""
    with StrictMessages(reader) as upstream:

        def answering(exchange: Exchange) -> Reply | None:
            used = count(exchange.json())
            return upstream.answering(exchange) if used + ENOUGH <= NARROW else refusal(used)

        upstream.answer(answering)
        with running_proxy(upstream.url, strategy="extract", **settings) as proxy:
            yield upstream, proxy


def long_agent(url: str, first: str) -> Agent:
    agent = Agent(url)
    agent.messages = [{"role": "user", "content": first}, *long_turns(14)]
    return agent


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_teaches_the_window_and_the_agent_goes_on_with_a_good_reply(refusal: Callable[[int], Reply]) -> None:
    with narrow(refusal) as (upstream, proxy):
        agent = long_agent(proxy.url, "Fix the parser.")
        answer = agent.turn()
        assert (answer.trigger, answer.window) == ("overflow", str(NARROW))
        assert "text" in [block["type"] for block in said_in(answer)]
        assert len(client_bodies(upstream)) == 2
        healed = client_bodies(upstream)[-1]["messages"]
        agent.turn()
        assert client_bodies(upstream)[-1]["messages"][: len(healed)] == healed
        assert long_agent(proxy.url, "Now the lexer.").turn().trigger == "context_limit"
        assert len(client_bodies(upstream)) == 4
        assert upstream.refusals == []


@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (
            400,
            "invalid_request_error",
            "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens",
        ),
        (429, "rate_limit_error", "This request would exceed your rate limit of 30,000 input tokens per minute"),
        (529, "overloaded_error", "Overloaded"),
    ],
)
def test_any_other_error_passes_byte_for_byte_and_teaches_nothing(status: int, kind: str, message: str) -> None:
    refused = json_reply(error(message, kind), status=status, headers=[("retry-after", "7"), ("request-id", "r1")])
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, strategy="extract") as proxy:
        upstream.answer(lambda exchange: refused)
        answer = wire.post_json(proxy.url, MESSAGES, long_agent("", "Fix the parser.").body(), HEADERS)
        assert (answer.status, answer.body) == (status, upstream.journal.to(MESSAGES)[-1].sent)
        assert (answer.header("retry-after"), answer.header("request-id")) == ("7", "r1")
        assert len(upstream.journal.to(MESSAGES)) == 1
        upstream.answer(upstream.answering)
        assert long_agent(proxy.url, "Now the lexer.").turn().action == "passed"


@pytest.mark.parametrize("steps", [opening()[:1], opening(), [*opening()[:2], PING, *opening()[2:]]])
def test_an_error_in_the_middle_of_a_stream_passes_byte_for_byte(steps: list[bytes]) -> None:
    overloaded = event(error("Overloaded", "overloaded_error"))
    with StrictMessages() as upstream, running_proxy(upstream.url, strategy="extract") as proxy:
        upstream.answer(lambda exchange: stream(*steps, overloaded, done=False))
        answer = wire.post_json(proxy.url, MESSAGES, Agent("").body(), HEADERS)
        assert answer.body == b"".join(steps) + overloaded
        assert len(upstream.journal.to(MESSAGES)) == 1


@pytest.mark.parametrize("torn", [b"", b"event: content_block_delta\ndata: {", b"event: content_block_delta\n"])
def test_a_stream_that_breaks_off_ends_with_the_vendors_error_event(torn: bytes) -> None:
    with StrictMessages() as upstream, running_proxy(upstream.url, strategy="extract") as proxy:
        upstream.answer(lambda exchange: stream(*opening(), *([torn] if torn else ()), cut=True))
        answer = wire.post_json(proxy.url, MESSAGES, Agent("").body(), HEADERS)
    assert answer.body.startswith(b"".join(opening()))
    name, data = answer.body.rstrip(b"\n").split(b"\n")[-2:]
    told = json.loads(data.removeprefix(b"data: "))
    assert (name, told["type"], told["error"]["type"]) == (b"event: error", "error", "api_error")
    assert answer.body.count(b"event: error") == 1
    assert b"message_stop" not in answer.body


def test_a_broken_off_reply_is_not_appended() -> None:
    append = [*HEADERS, ("x-condenser-history", "append"), ("x-condenser-session", "s")]
    with StrictMessages() as upstream, running_proxy(upstream.url) as proxy:
        upstream.answer(lambda exchange: stream(*opening(), cut=True))
        wire.post_json(proxy.url, MESSAGES, Agent("").body(), append)
        upstream.answer(upstream.answering)
        wire.post_json(proxy.url, MESSAGES, Agent("").body(), append)
        assert client_bodies(upstream)[-1]["messages"] == Agent("").messages
