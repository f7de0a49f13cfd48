"""The Responses API through the real proxy, before an upstream that refuses what the vendor refuses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strategies.prompts import prompt
from tests.support import wire
from tests.support.prefixes import sealed
from tests.support.proxy import running_proxy
from tests.support.replies import stream as event_stream
from tests.support.responses_upstream import (
    COMPACT,
    RESPONSES,
    StrictResponses,
    custom_tool_call,
    function_call,
    message,
    reasoning,
    web_search_call,
)
from tests.support.stage import store_rows
from tests.support.strict_responses import mismatched

Json = dict[str, Any]

WINDOW = 32_000
MODEL = "gpt-5.5"
KEY = [("authorization", "Bearer k")]
TOOLS: list[Json] = [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}]
RULE = "Fix the parser. Never touch main.py."
SUMMARY = "Goal: fix the parser. Rules: never touch main.py. Done: files were read." + " Each line was read." * 20
VOTE = "<reasoning>Much was read.</reasoning>\n<decision>YES</decision>"


def is_own(body: Mapping[str, Any]) -> bool:
    """Whether the proxy asks here on its own account: no tool may be called."""
    return not body.get("tools") or body.get("tool_choice") == "none"


def reader(body: Mapping[str, Any]) -> Sequence[Json] | str:
    """An agent that reasons and reads a file or two in every reply, and summarizes when it is asked to."""
    if is_own(body):
        is_vote = str(body.get("instructions") or "").startswith(prompt("judge")[:60])
        return VOTE if is_vote else f"<summary>{SUMMARY}</summary>"
    step = len(body["input"])
    calls = [function_call("read", {"path": f"src/{step}-{place}.py"}) for place in range(1 + step % 3)]
    patch = [custom_tool_call("apply_patch", f"*** Begin {step}")] if step % 4 == 0 else []
    searched = [web_search_call(f"part {step}")] if step % 5 == 0 else []
    return [*searched, reasoning(f"I need {step}."), message("I look."), *calls, *patch]


@dataclass
class Agent:
    """A client that keeps its whole history and answers each call with a long result."""

    url: str
    stream: bool = True
    store: bool = False
    headers: Sequence[tuple[str, str]] = tuple(KEY)
    items: list[Json] = field(default_factory=lambda: [{"role": "user", "content": RULE}])

    def body(self) -> Json:
        asked = {"model": MODEL, "instructions": "Be careful.", "tools": TOOLS, "store": self.store}
        return {**asked, "stream": self.stream, "input": self.items}

    def turn(self) -> wire.Answer:
        answer = wire.post_json(self.url, RESPONSES, self.body(), self.headers)
        assert answer.status == 200, answer.body
        output = response_in(answer)["output"]
        self.items += output
        calls = [item for item in output if item["type"] in ("function_call", "custom_tool_call")]
        self.items += [self._result(call) for call in calls]
        number = len(self.items)
        if number % 5 == 0 or not calls:
            self.items.append({"role": "user", "content": [{"type": "input_text", "text": f"And mind part {number}."}]})
        if number % 7 == 0:
            self.items.append({"role": "developer", "content": f"Reminder {number}."})
        return answer

    def _result(self, call: Json) -> Json:
        text = f"line {len(self.items)} of a file. " * 150
        return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": text}


def response_in(answer: wire.Answer) -> Json:
    """The response in a reply; of a stream, that of the last event, whose events are numbered without gaps."""
    if not (answer.header("content-type") or "").startswith("text/event-stream"):
        return dict(answer.json())
    events = [json.loads(data) for data in wire.events(answer.body)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response = dict(events[-1]["response"])
    assert done == response["output"]
    return response


def client_bodies(upstream: StrictResponses) -> list[Json]:
    """The client's requests as the upstream got them, without the proxy's own."""
    return [body for exchange in upstream.journal.to(RESPONSES) if not is_own(body := exchange.json())]


def long_turns(turns: int) -> list[Json]:
    """Turns that have a long answer, and a last question."""
    said = ((message(f"Part {turn} needs care. " + "water " * 800), f"What of part {turn}?") for turn in range(turns))
    return [item for answer, question in said for item in (answer, {"role": "user", "content": question})]


# -- transparency ------------------------------------------------------------------------------------------


def test_a_text_in_place_of_the_list_is_one_message() -> None:
    body = json.dumps({"model": MODEL, "input": "hi"}).encode()
    with StrictResponses() as upstream, running_proxy(upstream.url, strategy="half-window", window=200_000) as proxy:
        answer = wire.request(proxy.url, "POST", RESPONSES, body, [*wire.JSON, *KEY])
        assert answer.action == "passed"
        assert upstream.journal.only(RESPONSES).body == body


# -- condensing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_the_upstreams_compaction_is_sent_the_standing_view(stream: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "strategy": "mask+half-window",
        "window": WINDOW,
        "store": {"url": f"sqlite:///{tmp_path / 'c.db'}"},
    }
    with StrictResponses(reader, window=WINDOW) as upstream, running_proxy(upstream.url, **settings) as proxy:
        agent = Agent(proxy.url, stream=stream)
        while agent.turn().action != "condensed" or len(upstream.journal.to(RESPONSES)) < 16:
            proxy.quiet()
        before, kept = store_rows(tmp_path / "c.db"), len(client_bodies(upstream)[-1]["input"])
        answer = wire.post_json(proxy.url, COMPACT, agent.body(), agent.headers)
        assert (answer.status, answer.action) == (200, "replayed")
        asked = upstream.journal.only(COMPACT).json()
        assert asked["input"][:kept] == client_bodies(upstream)[-1]["input"]
        assert asked["tools"] == TOOLS
        assert upstream.refusals == []
        marked = {**before, "index": before["index"] + 1}  # by which the answer is known when it comes back
        assert store_rows(tmp_path / "c.db") == marked
        planned = wire.post_json(proxy.url, COMPACT, agent.body(), [*agent.headers, ("x-condenser-dry-run", "true")])
        assert planned.json()["action"] == "replayed"
        off = wire.post_json(proxy.url, COMPACT, agent.body(), [*agent.headers, ("x-condenser-strategy", "off")])
        assert off.action == "passed"
        assert len(upstream.journal.to(COMPACT)) == 2


@pytest.mark.parametrize("store", [True, False])
def test_reasoning_from_after_a_condensation_keeps_its_prefix(store: bool) -> None:
    with (
        StrictResponses(reader, window=WINDOW) as upstream,
        running_proxy(upstream.url, strategy="mask+half-window", window=WINDOW) as proxy,
    ):
        agent = Agent(proxy.url, store=store)
        while agent.turn().action != "condensed":
            pass
        dropped = dropped_reasoning(upstream)
        assert dropped
        for _ in range(3):
            agent.turn()
            assert dropped_reasoning(upstream) == dropped
        assert upstream.refusals == []


def dropped_reasoning(upstream: StrictResponses) -> list[str]:
    """The reasoning in the newest view that the upstream leaves out, because what stands before it has changed."""
    return [each["id"] for each in mismatched(client_bodies(upstream)[-1], upstream.known)]


def test_an_opaque_history_and_late_tools_stay_whatever_is_condensed() -> None:
    opaque = {"type": "compaction", "id": "cmp_1", "encrypted_content": sealed("compaction", "1")}
    tools = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
    with StrictResponses(reader) as upstream, running_proxy(upstream.url, strategy="recent", window=WINDOW) as proxy:
        agent = Agent(proxy.url)
        agent.items += [tools, *long_turns(10), opaque, *long_turns(40)]
        assert agent.turn().action == "condensed"
        view = client_bodies(upstream)[-1]["input"]
        assert [item for item in view if item.get("type") in ("compaction", "additional_tools")] == [tools, opaque]


@pytest.mark.parametrize("overflow", ["status", "failed", "error"])
def test_an_overflow_is_mended_before_the_client_sees_it(overflow: Any) -> None:
    with (
        StrictResponses(reader, window=12_000, overflow=overflow) as upstream,
        running_proxy(upstream.url, strategy="half-window") as proxy,
    ):
        agent = Agent(proxy.url)
        agent.items += long_turns(16)
        answer = agent.turn()
        assert upstream.refusals
        assert answer.trigger == "overflow"


# -- errors ------------------------------------------------------------------------------------------------


def test_an_upgrade_to_a_web_socket_is_refused() -> None:
    upgrade = [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", "13")]
    with StrictResponses() as upstream, running_proxy(upstream.url) as proxy:
        answer = wire.request(proxy.url, "GET", RESPONSES, b"", [*KEY, *upgrade])
        assert len(upstream.journal) == 0
    assert answer.status == 426
    assert answer.json()["error"]["code"] == "upgrade_refused"


def test_a_broken_off_stream_ends_with_a_numbered_error() -> None:
    begun = {"type": "response.created", "sequence_number": 0, "response": {"object": "response", "error": None}}
    with StrictResponses() as upstream, running_proxy(upstream.url) as proxy:
        upstream.answer(lambda exchange: event_stream(begun, cut=True))
        answer = wire.post_json(proxy.url, RESPONSES, Agent(proxy.url).body(), KEY)
    error = json.loads(list(wire.events(answer.body))[-1])
    assert (error["type"], error["sequence_number"]) == ("error", 1)
    assert error["message"] == error["error"]["message"]


# -- what the server keeps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "server-state"),
        ({"conversation": "conv_1"}, "server-state"),
        ({"prompt": {"id": "pmpt_1"}}, "server-state"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unresolved-reference"),
    ],
)
def test_what_builds_on_the_servers_state_passes_and_says_so(members: Json, reason: str) -> None:
    body = {**Agent("").body(), "condenser": {"strategy": "recent"}, **members}
    with StrictResponses() as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        answer = wire.post_json(proxy.url, RESPONSES, body, KEY)
        forwarded = upstream.journal.only(RESPONSES).json()
    assert (answer.action, answer.reason) == ("bypassed", reason)
    assert forwarded == {key: value for key, value in body.items() if key != "condenser"}


def test_a_client_that_leaves_its_history_to_the_server_passes_until_the_end() -> None:
    with StrictResponses(window=WINDOW) as upstream, running_proxy(upstream.url, window=WINDOW) as proxy:
        previous: Json = {}
        for reason in ("below-marks", "server-state", "server-state"):
            body = {"model": MODEL, "input": [{"role": "user", "content": "Go on."}], **previous}
            answer = wire.post_json(proxy.url, RESPONSES, body, KEY)
            assert answer.reason == reason
            previous = {"previous_response_id": response_in(answer)["id"]}
        assert [each.body for each in proxy.journal.to(RESPONSES)] == [
            each.body for each in upstream.journal.to(RESPONSES)
        ]
        assert upstream.refusals == []


# -- counting ----------------------------------------------------------------------------------------------
