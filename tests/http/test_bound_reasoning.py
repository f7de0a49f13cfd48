"""Reasoning that is bound to a head which a later view lacks: it is left out, or a refusal has it left out once."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest

from tests.http.test_messages import HEADERS, NARROW, Agent, client_bodies, reader, said_in
from tests.support import replies, wire
from tests.support.admin_api import SESSIONS, TOKEN, operator, place_of
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.proxy import Proxy, proxy_before, running_proxy
from tests.support.recording import Exchange
from tests.support.redis_server import RedisServer
from tests.support.replies import Reply
from tests.support.stage import controls
from tests.support.strict_messages import blocks
from tests.support.upstream import ScriptedUpstream

SETTINGS: dict[str, Any] = {"strategy": "half-window", "background": {"mode": "off"}, "admin": {"token": TOKEN}}
ACTION, REASON = "x-condenser-action", "x-condenser-reason"
DROPPED = "reasoning-dropped"
CHAT = "/v1/chat/completions"


@dataclass
class Thinker(Agent):
    """An agent whose requests may ask something of the proxy; `answers` are the replies that it got."""

    answers: list[wire.Answer] = field(default_factory=list)

    def ask(self, **given: Any) -> wire.Answer:
        headers = [*HEADERS, *controls(**{"session": "s", "window": NARROW, **given})]
        answer = wire.post_json(self.url, MESSAGES, self.body(), headers)
        assert answer.status == 200, answer.body
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": said_in(answer)})
        calls = [block for block in said_in(answer) if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "a line. " * 400} for call in calls]
        self.messages.append({"role": "user", "content": results or "Go on."})
        return answer

    def until_condensed(self) -> None:
        """So many rounds that a condensation stands, and two more behind its head."""
        while self.ask().header(ACTION) != "condensed":
            pass
        for _ in range(2):
            assert self.ask().header(ACTION) == "replayed"


def place(proxy: Proxy) -> str:
    return place_of(operator(proxy.url, f"{SESSIONS}/s").json())


def revert(proxy: Proxy) -> None:
    latest = operator(proxy.url, f"{SESSIONS}/s").json()["latest_condensation"]
    assert operator(proxy.url, f"{place(proxy)}/condensations/{latest}/revert", "POST").status == 200


def delete(proxy: Proxy) -> None:
    assert operator(proxy.url, place(proxy), "DELETE").status == 200


def nothing(proxy: Proxy) -> None:
    """Only the requests change."""


KNOWN: list[tuple[dict[str, Any], Callable[[Proxy], None]]] = [
    ({"window": 200_000}, nothing),
    ({"strategy": "off"}, nothing),
    ({"strategy": "observe:half-window"}, nothing),
    ({"window": 60_000}, revert),
]


@pytest.mark.parametrize(("controls", "change"), KNOWN)
def test_a_view_without_its_head_has_no_reasoning(controls: dict[str, Any], change: Callable[[Proxy], None]) -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, **SETTINGS) as proxy:
        client = Thinker(proxy.url)
        client.until_condensed()
        change(proxy)
        length = len(client.messages)
        first = client.ask(**controls)
        assert first.header(ACTION) in ("passed", "would-condense")
        assert first.header(REASON) in (DROPPED, "reverted", None)
        assert thoughts(upstream) == []
        for _ in range(2):
            client.ask(**controls)
        # What was thought behind the new head stays.
        assert [at for at in thoughts(upstream) if at < length] == []
        assert len(thoughts(upstream)) == 2
        for _ in range(4):
            client.ask()
        assert upstream.refusals == []


def thoughts(upstream: StrictMessages) -> list[int]:
    """The places of the messages with thinking in what the upstream got last."""
    messages = client_bodies(upstream)[-1]["messages"]
    found = [any(block["type"] == "thinking" for block in blocks(message["content"])) for message in messages]
    return [at for at, thinks in enumerate(found) if thinks]


@pytest.mark.parametrize("controls", [{"window": 200_000}, {"strategy": "off"}, {"strategy": "observe:half-window"}])
def test_a_lost_session_costs_one_refusal_hidden_from_the_client(controls: dict[str, Any]) -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, **SETTINGS) as proxy:
        client = Thinker(proxy.url)
        client.until_condensed()
        delete(proxy)
        first = client.ask(**controls)
        assert len(upstream.refusals) == 1
        if controls.get("strategy") != "observe:half-window":
            assert first.header(REASON) == DROPPED
        for _ in range(3):
            client.ask(**controls)
        for _ in range(3):
            client.ask()
        assert len(upstream.refusals) == 1
        assert "rewrite-refused" not in {answer.header(REASON) for answer in client.answers}


def test_a_derived_conversation_remembers_what_a_refusal_showed() -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, **SETTINGS) as proxy:
        client = Thinker(proxy.url)
        client.until_condensed()
        for _ in range(3):
            client.ask(session=None, window=200_000)
        assert len(upstream.refusals) == 1


def test_a_store_that_is_down_refuses_nobody() -> None:
    with (
        RedisServer() as redis,
        StrictMessages(reader) as upstream,
        running_proxy(upstream.url, store={"url": redis.url}, **SETTINGS) as proxy,
    ):
        client = Thinker(proxy.url)
        client.until_condensed()
        redis.kill()
        changes: list[dict[str, Any]] = [{"window": 200_000}, {}, {"strategy": "off"}, {}]
        for controls in changes:
            assert client.ask(**controls).header(ACTION) == "degraded"


def test_a_fork_sends_no_thinking_of_the_other_branch() -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, **SETTINGS) as proxy:
        client = Thinker(proxy.url)
        client.until_condensed()
        client.messages = client.messages[:-2]
        client.messages[-1] = {**client.messages[-1], "content": [*client.messages[-1]["content"], TURNED]}
        client.ask(window=200_000)
        client.ask(window=200_000)
        assert upstream.refusals == []


TURNED = {"type": "text", "text": "No, look elsewhere."}


# -- other servers' rules ----------------------------------------------------------------------------------------

BACK = "The `content[].thinking` in the thinking mode must be passed back to the API."


def wants_it_back(exchange: Exchange) -> Reply | None:
    """A server that wants the thinking of every message with calls, as DeepSeek's does."""
    body = exchange.json()
    for message in body["messages"]:
        kinds = [block["type"] for block in blocks(message["content"])]
        if "tool_use" in kinds and "thinking" not in kinds:
            return replies.json_reply({"error": {"message": BACK, "type": "invalid_request_error"}}, status=400)
    said = replies.json_reply({"type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 9}})
    return said if exchange.path == MESSAGES else None


def looked(number: int, **arguments: str) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": f"src/{number}.py", **arguments}}
    thought = {"type": "thinking", "thinking": f"Look at {number}.", "signature": f"s{number}"}
    answer = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "a line. " * 100}
    return [{"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [answer]}]


@pytest.mark.parametrize("strategy", ["mask", "half-window", "recent", "extract", "off"])
def test_a_server_that_needs_its_thinking_refuses_only_once(strategy: str) -> None:
    with proxy_before(ScriptedUpstream(), strategy=strategy, background={"mode": "off"}) as (upstream, proxy):
        upstream.answer(wants_it_back)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go through the files."}]
        statuses, reasons = [], []
        for number in range(30):
            messages += looked(number, note="n" * 900)
            body = {"model": "m", "max_tokens": 9, "thinking": {"type": "adaptive"}, "messages": messages}
            answer = wire.post_json(proxy.url, MESSAGES, body, [*HEADERS, *controls(session="s", window=6_000)])
            statuses.append(answer.status)
            reasons.append(answer.header(REASON))
        refused = [each for each in upstream.journal.to(MESSAGES) if each.status == 400]
        assert set(statuses) == {200}
        assert len(refused) == (strategy != "off")
        assert "rewrite-refused" not in reasons


def binds_in_chat(exchange: Exchange) -> Reply | None:
    """A gateway to a model that binds signed thinking to the messages before it."""
    messages = exchange.json()["messages"]
    for at, message in enumerate(messages):
        signed = [*message.get("thinking_blocks", ()), *message.get("reasoning_details", ())]
        if any(part["signature"] != signature(messages[:at]) for part in signed if "signature" in part):
            error = f"messages.{at}.content.0: Invalid `signature` in `thinking` block."
            return replies.json_reply({"error": {"message": error, "type": "invalid_request_error"}}, status=400)
    return replies.completion("ok")


def signature(before: list[dict[str, Any]]) -> str:
    return sha256(json.dumps([[each["role"], each.get("content")] for each in before]).encode()).hexdigest()


@pytest.mark.parametrize("member", ["thinking_blocks", "reasoning_details"])
@pytest.mark.parametrize("strategy", ["mask", "half-window"])
def test_signed_thinking_in_chat_is_bound_as_it_is_in_messages(strategy: str, member: str) -> None:
    with proxy_before(ScriptedUpstream(), strategy=strategy, background={"mode": "off"}) as (upstream, proxy):
        upstream.answer(binds_in_chat)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Go through the files."}]
        actions = []
        for number in range(30):
            forwarded = upstream.journal.to(CHAT)[-1].json()["messages"] if number else messages
            part = {"type": "thinking", "thinking": "Look.", "signature": signature(forwarded)}
            call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            answer = {"role": "tool", "tool_call_id": f"c{number}", "content": f"{number} a line. " * 60}
            thought = {"role": "assistant", "content": "", member: [part, {"type": "unsigned"}], "tool_calls": [call]}
            messages += [{**thought, "reasoning_content": "Look."}, answer]
            body = {"model": "m", "messages": messages}
            reply = wire.post_json(proxy.url, CHAT, body, controls(session="s", window=3_000))
            assert reply.status == 200, reply.body
            actions.append(reply.header(ACTION))
            assert all(each.get("reasoning_content") for each in forwarded_calls(upstream))
        assert actions.count("condensed") >= 2
        assert {each.status for each in upstream.journal.to(CHAT)} == {200}


def forwarded_calls(upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    messages = upstream.journal.to(CHAT)[-1].json()["messages"]
    return [message for message in messages if message.get("tool_calls")]
