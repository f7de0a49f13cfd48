"""The Messages API through the real proxy, before an upstream that refuses what the vendor refuses."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from strategies.prompts import prompt
from tests.support import wire
from tests.support.messages_upstream import COUNT, MESSAGES, StrictMessages, text, thinking, tool_use, web_search
from tests.support.proxy import proxy_before, running_proxy
from tests.support.strict_messages import Body, blocks

Json = dict[str, Any]

MODEL = "claude-opus-4-8"
WINDOW, NARROW = 32_000, 16_000
HEADERS = [("x-api-key", "k"), ("anthropic-version", "2023-06-01")]
TOOLS: list[Json] = [
    {"name": "read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
]
RULE = "Fix the parser. Never touch main.py."
SUMMARY = "Goal: fix the parser. Rules: never touch main.py. Done: files were read." + " Each line was read." * 20


VOTE = "<reasoning>Much was read.</reasoning>\n<decision>YES</decision>"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def is_own(body: Body) -> bool:
    """Whether the proxy asks here on its own account: no tool may be called."""
    return not body.get("tools") or (body.get("tool_choice") or {}).get("type") == "none"


def reader(body: Body) -> Sequence[Json] | str:
    """An agent that thinks and reads a file or two in every reply, and summarizes when it is asked to."""
    if is_own(body):
        is_vote = str(body.get("system", "")).startswith(prompt("judge")[:60])
        return VOTE if is_vote else f"<summary>{SUMMARY}</summary>"
    step = len(json.dumps(body["messages"]))
    calls = [tool_use("read", {"path": f"src/{step}-{place}.py"}) for place in range(1 + step // 7 % 3)]
    searched = web_search(f"part {step}", "https://moss.example") if step % 3 == 0 else []
    return [thinking(f"I need {step}."), *searched, text("I look."), *calls]


@dataclass
class Agent:
    """A client that keeps its whole history and answers each call with a long result."""

    url: str
    stream: bool = True
    more: Json = field(default_factory=dict)
    messages: list[Json] = field(default_factory=lambda: [{"role": "user", "content": RULE}])

    def body(self) -> Json:
        asked = {"model": MODEL, "max_tokens": 1_000, "system": "Be careful.", "tools": TOOLS, **self.more}
        return {**asked, "stream": self.stream, "messages": self.messages}

    def turn(self) -> wire.Answer:
        answer = wire.post_json(self.url, MESSAGES, self.body(), HEADERS)
        assert answer.status == 200, answer.body
        content = said_in(answer)
        self.messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        results = [result(call["id"], f"line {len(self.messages)} of a file. " * 150) for call in calls]
        number = len(self.messages) // 2
        said = [text(f"And mind part {number}.")] if number % 5 == 0 or not calls else []
        self.messages.append({"role": "user", "content": [*results, *said]})
        if number % 7 == 0:
            self.messages.append({"role": "system", "content": f"Reminder {number}."})
        return answer


def result(id: str, content: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def said_in(answer: wire.Answer) -> list[Json]:
    """The blocks of a reply, streamed or not."""
    if not (answer.header("content-type") or "").startswith("text/event-stream"):
        return list(answer.json()["content"])
    written: dict[int, Json] = {}
    inputs: dict[int, str] = {}
    for told in map(json.loads, wire.events(answer.body)):
        if told["type"] == "content_block_start":
            written[told["index"]] = dict(told["content_block"])
        elif told["type"] == "content_block_delta":
            block, delta = written[told["index"]], told["delta"]
            if delta["type"] == "input_json_delta":
                inputs[told["index"]] = inputs.get(told["index"], "") + delta["partial_json"]
                continue
            member = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"], "signature")
            block[member] = block.get(member, "") + delta[member]
    for index, given in inputs.items():
        written[index]["input"] = json.loads(given)
    assert list(written) == list(range(len(written)))
    return list(written.values())


def client_bodies(upstream: StrictMessages) -> list[Json]:
    """The client's requests as the upstream got them, without the proxy's own."""
    return [body for exchange in upstream.journal.to(MESSAGES) if not is_own(body := exchange.json())]


def views(upstream: StrictMessages) -> Iterator[tuple[list[Json], list[Json]]]:
    """Each view that the upstream got, after the one before it."""
    bodies = [body["messages"] for body in client_bodies(upstream)]
    return pairwise(bodies)


# -- transparency ------------------------------------------------------------------------------------------


def test_the_operators_key_is_sent_in_the_vendors_header() -> None:
    with proxy_before(StrictMessages(), strategy="off", upstream={"api_key": "secret"}) as (upstream, proxy):
        Agent(proxy.url).turn()
        exchange = upstream.journal.only(MESSAGES)
        assert (exchange.header("x-api-key"), exchange.header("authorization")) == ("secret", None)


# -- condensing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["half-window", "mask"])
def test_a_turn_in_manual_mode_keeps_its_thinking(strategy: str) -> None:
    with (
        StrictMessages(reader, window=NARROW, bound=False) as upstream,
        running_proxy(upstream.url, strategy=strategy, window=NARROW) as proxy,
    ):
        manual = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}
        agent = Agent(proxy.url, more=manual)
        for _ in range(24):
            agent.turn()
            proxy.quiet()
        actions = [exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(MESSAGES)]
        assert actions.count("condensed") >= 2
        assert upstream.refusals == []


def test_only_thinking_from_after_a_condensation_is_kept() -> None:
    with proxy_before(StrictMessages(reader, window=WINDOW), strategy="mask", window=WINDOW) as (upstream, proxy):
        agent = Agent(proxy.url)
        while (answer := agent.turn()).action != "condensed":
            pass
        assert answer.reason == "reasoning-dropped"
        condensed = len(client_bodies(upstream)[-1]["messages"])
        assert {agent.turn().reason for _ in range(3)} == {None}
        thoughts = [
            place
            for place, message in enumerate(client_bodies(upstream)[-1]["messages"])
            if any(block["type"] == "thinking" for block in blocks(message["content"]))
        ]
        assert len(thoughts) == 3
        assert min(thoughts) >= condensed


def long_turns(turns: int) -> list[Json]:
    """Turns that have a long answer, and a last question."""
    return [
        message
        for turn in range(turns)
        for message in (
            {"role": "assistant", "content": [text(f"Part {turn} needs care. " + "water " * 800)]},
            {"role": "user", "content": f"What of part {turn}?"},
        )
    ]


# -- caching ----------------------------------------------------------------------------------------------

FOR_AN_HOUR: Json = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
FOR_A_MOMENT: Json = {"cache_control": {"type": "ephemeral"}}


class Marking(Agent):
    """An agent that marks its system prompt, and the last block of its last message."""

    def body(self) -> Json:
        system = [text("Billing."), {**text("Be careful."), **FOR_AN_HOUR}]
        *before, last = self.messages
        content = blocks(last["content"])
        marked = {**last, "content": [*content[:-1], {**content[-1], **FOR_A_MOMENT}]}
        return {**super().body(), "system": system, "messages": [*before, marked]}


def markers(view: Sequence[Json]) -> list[int]:
    return [place for place, message in enumerate(view) if "cache_control" in json.dumps(message)]


@pytest.mark.parametrize("strategy", ["half-window", "extract", "mask"])
def test_a_head_is_marked_for_caching_if_the_client_marks(strategy: str) -> None:
    with proxy_before(StrictMessages(reader, window=WINDOW), strategy=strategy, window=WINDOW) as (upstream, proxy):
        agent = Marking(proxy.url)
        for _ in range(25):
            condensed = agent.turn().action in ("condensed", "replayed")
            *marked, last = markers(client_bodies(upstream)[-1]["messages"])
            assert last >= len(client_bodies(upstream)[-1]["messages"]) - 2
            assert len(marked) == condensed
            if marked:
                content = client_bodies(upstream)[-1]["messages"][marked[0]]["content"]
                assert content[-1]["cache_control"] == FOR_AN_HOUR["cache_control"]
        assert upstream.refusals == []
        assert condensed


def test_markers_are_four_at_most_and_none_without_the_clients() -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, strategy="extract", window=WINDOW) as proxy:
        forced = [*HEADERS, ("x-condenser-force", "true")]
        for agent, number in ((Agent(proxy.url), 0), (Marking(proxy.url), 4)):
            agent.messages += long_turns(12)
            body = agent.body()
            if number:
                body["tools"] = [{**tool, **FOR_AN_HOUR} for tool in TOOLS]
                body["system"][0] |= FOR_AN_HOUR
            assert wire.post_json(proxy.url, MESSAGES, body, forced).action == "condensed"
            assert json.dumps(client_bodies(upstream)[-1]).count("cache_control") == number


# -- sessions ----------------------------------------------------------------------------------------------


def post(url: str, headers: Mapping[str, str], **members: Any) -> wire.Answer:
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **members}
    return wire.post_json(url, MESSAGES, body, [*HEADERS, *headers.items()])


def test_the_session_inside_of_the_users_id_names_the_session() -> None:
    with StrictMessages() as upstream, running_proxy(upstream.url) as proxy:
        user = json.dumps({"device_id": "d", "session_id": "two"})
        answer = post(proxy.url, {}, metadata={"user_id": user})
    assert (answer.session, answer.header("x-condenser-session-source")) == ("two", "metadata.user_id")


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
@pytest.mark.parametrize("path", [MESSAGES, COUNT])
def test_what_belongs_to_a_thread_of_the_server_passes_and_says_so(path: str, thread: Json) -> None:
    body = {**Agent("").body(), "thread": thread}
    with StrictMessages() as upstream, running_proxy(upstream.url, strategy="recent", window=WINDOW) as proxy:
        answer = wire.post_json(proxy.url, path, {**body, "condenser": {"force": True}}, HEADERS)
        forwarded = upstream.journal.only(path).json()
    assert (answer.action, answer.reason) == ("bypassed", "server-state")
    assert forwarded == body


def test_a_request_that_names_a_container_is_condensed() -> None:
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, strategy="extract", window=WINDOW) as proxy:
        agent = Agent(proxy.url, more={"container": "container_1"})
        agent.messages += long_turns(12)
        answer = wire.post_json(proxy.url, MESSAGES, agent.body(), [*HEADERS, ("x-condenser-force", "true")])
        assert answer.action == "condensed"
        assert client_bodies(upstream)[-1]["container"] == "container_1"


# -- replies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_append_mode_sends_the_stored_history_with_the_models_own_blocks(stream: bool) -> None:
    append = [("x-condenser-history", "append"), ("x-condenser-session", "s")]
    with StrictMessages(reader) as upstream, running_proxy(upstream.url, strategy="half-window") as proxy:
        agent = Agent(proxy.url, stream=stream)
        first = wire.post_json(proxy.url, MESSAGES, agent.body(), [*HEADERS, *append])
        said = said_in(first)
        results = [result(block["id"], "ok") for block in said if block["type"] == "tool_use"]
        agent.messages = [{"role": "user", "content": results}]
        second = wire.post_json(proxy.url, MESSAGES, agent.body(), [*HEADERS, *append])
        assert (first.status, second.status, upstream.refusals) == (200, 200, [])
        assert client_bodies(upstream)[-1]["messages"] == [
            {"role": "user", "content": RULE},
            {"role": "assistant", "content": said},
            {"role": "user", "content": results},
        ]
