"""`search_memory` in the Messages API: the model searches inside the proxy, and its client never sees that it did."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from proxy.endpoints.hidden_calls import NAME, NO_ANSWER
from tests.http.test_messages import Agent, client_bodies, is_own, result, said_in
from tests.support import wire
from tests.support.messages_upstream import MESSAGES, StrictMessages, last_results, text, thinking, tool_use
from tests.support.proxy import running_proxy
from tests.support.strict_messages import Body

Json = dict[str, Any]

FACT = "The greenhouse key hangs behind the blue barrel."
QUESTION = "Where does the greenhouse key hang?"
SEARCH = tool_use(NAME, {"query": "greenhouse key"})
LOOK = tool_use("read", {"path": "a"})
HEADERS = [("x-api-key", "k"), ("anthropic-version", "2023-06-01"), ("x-condenser-session", "s")]
TOOL = ("x-condenser-memory", "tool")
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Searcher:
    """A model that searches when it is asked for the key, in a way that `opening` says, and answers with the result."""

    def __init__(self, *opening: Json, always: bool = False) -> None:
        self.opening = opening
        self.always = always

    def __call__(self, body: Body) -> Sequence[Json] | str:
        if any(FACT in json.dumps(found) for found in last_results(body)) and not self.always:
            return [thinking("There it is."), text("Behind the blue barrel.")]
        may_call = (body.get("tool_choice") or {}).get("type") != "none"
        if self.always and not may_call:
            return [thinking("I give up.")]
        if QUESTION in json.dumps(body["messages"][-1]) or (self.always and last_results(body)):
            return list(self.opening)
        return "Yes."


@contextmanager
def remembering(script: Searcher) -> Iterator[tuple[StrictMessages, Agent]]:
    """An upstream and a client before which a fact was said, and condensed away."""
    with StrictMessages(script) as upstream, running_proxy(upstream.url, strategy="recent", window=8_192) as proxy:
        agent = Agent(proxy.url, stream=False)
        agent.messages = [{"role": "user", "content": "Keep a diary of my garden."}]
        for turn in range(12):
            noted = FACT if turn == 1 else f"Noted {turn}. " + "water " * 60
            agent.messages += [
                {"role": "assistant", "content": [text(noted)]},
                {"role": "user", "content": f"Bed {turn} gets kale. " + "frost " * 60},
            ]
        ask(agent, False, ("x-condenser-force", "true"))
        proxy.quiet()
        assert FACT not in json.dumps(client_bodies(upstream)[-1]["messages"])
        upstream.journal.clear()
        yield upstream, agent


def ask(agent: Agent, streamed: bool, *headers: tuple[str, str]) -> wire.Answer:
    """The reply to the client's messages, to which what it says is added."""
    body = {**agent.body(), "stream": streamed}
    answer = wire.post_json(agent.url, MESSAGES, body, [*HEADERS, TOOL, *headers])
    assert answer.status == 200, answer.body
    agent.messages.append({"role": "assistant", "content": said_in(answer)})
    return answer


def texts(content: Sequence[Json]) -> list[str]:
    return [block["text"] for block in content if block["type"] == "text"]


def upstream_bodies(upstream: StrictMessages) -> list[Json]:
    return [exchange.json() for exchange in upstream.journal.to(MESSAGES)]


@both
def test_a_search_is_run_and_neither_call_nor_result_reaches_the_client(streamed: bool) -> None:
    with remembering(Searcher(thinking("I search."), text("Let me look."), SEARCH)) as (upstream, agent):
        agent.messages.append({"role": "user", "content": QUESTION})
        answer = ask(agent, streamed)
        said = agent.messages[-1]["content"]
        assert NAME not in answer.body.decode()
        assert texts(said) == ["Let me look.", "Behind the blue barrel."]
        first, second = upstream_bodies(upstream)
        assert second["tools"] == first["tools"]
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert FACT in json.dumps(second["messages"][-1]["content"][0])
        # The client sends all of it back, and the upstream takes that behind the hidden round.
        agent.messages.append({"role": "user", "content": "Thanks."})
        ask(agent, streamed)
        assert upstream.refusals == []
        third = upstream_bodies(upstream)[-1]["messages"]
        assert third[: len(second["messages"])] == second["messages"]


@both
def test_a_search_beside_a_clients_call_serves_the_next_request(streamed: bool) -> None:
    with remembering(Searcher(thinking("Both."), SEARCH, LOOK)) as (upstream, agent):
        agent.messages.append({"role": "user", "content": QUESTION})
        ask(agent, streamed)
        said = agent.messages[-1]["content"]
        assert [block.get("name") for block in said if block["type"] == "tool_use"] == ["read"]
        call = next(block["id"] for block in said if block["type"] == "tool_use")
        agent.messages.append({"role": "user", "content": [result(call, "nothing")]})
        ask(agent, streamed)
        assert upstream.refusals == []
        assert FACT in json.dumps(upstream_bodies(upstream)[-1]["messages"])


@both
def test_in_the_last_round_no_tool_may_be_called(streamed: bool) -> None:
    with remembering(Searcher(SEARCH, always=True)) as (upstream, agent):
        agent.messages.append({"role": "user", "content": QUESTION})
        answer = ask(agent, streamed)
        bodies = upstream_bodies(upstream)
        assert len(bodies) > 1
        assert bodies[-1]["tool_choice"] == {"type": "none"}
        assert bodies[-1]["tools"] == bodies[0]["tools"]
        assert NAME not in answer.body.decode()
        assert texts(agent.messages[-1]["content"]) == [NO_ANSWER]
        assert upstream.refusals == []


@both
def test_the_usage_has_the_output_of_all_replies(streamed: bool) -> None:
    with remembering(Searcher(SEARCH)) as (upstream, agent):
        agent.messages.append({"role": "user", "content": QUESTION})
        answer = ask(agent, streamed)
        replies = [exchange.sent for exchange in upstream.journal.to(MESSAGES)]
        assert output_tokens(answer.body, streamed) == sum(output_tokens(reply, streamed) for reply in replies)


def output_tokens(body: bytes, streamed: bool) -> int:
    if not streamed:
        return int(json.loads(body)["usage"]["output_tokens"])
    deltas = [event for event in map(json.loads, wire.events(body)) if event["type"] == "message_delta"]
    assert len(deltas) == 1
    return int(deltas[0]["usage"]["output_tokens"])


# -- memory blocks -----------------------------------------------------------------------------------------


def pondering(body: Body) -> Sequence[Json] | str:
    """A model that thinks before each of its long answers, and summarizes when it is asked to."""
    if is_own(body) and "system" not in body:
        return "<summary>Beds were planted.</summary>"
    number = len(body["messages"])
    return [thinking(f"Hm {number}."), text(f"Bed {number} is done. " + "water " * 250)]


@pytest.mark.parametrize("strategy", ["recent", "rolling"])
def test_a_memory_block_stays_at_its_place_so_that_thinking_stays_valid(strategy: str) -> None:
    with (
        StrictMessages(pondering, window=8_192) as upstream,
        running_proxy(upstream.url, strategy=strategy, window=8_192) as proxy,
    ):
        agent = Agent(proxy.url)
        agent.messages = [{"role": "user", "content": FACT}]
        headers = [*HEADERS, ("x-condenser-memory", "inject")]
        views: list[list[Json]] = []
        actions: list[str] = []
        for turn in range(45):
            answer = wire.post_json(agent.url, MESSAGES, agent.body(), headers)
            assert answer.status == 200, answer.body
            actions.append(answer.action or "")
            agent.messages.append({"role": "assistant", "content": said_in(answer)})
            asked = QUESTION if turn % 3 == 0 else f"What grows in bed {turn}? " + "frost " * 60
            agent.messages.append({"role": "user", "content": asked})
            views.append(client_bodies(upstream)[-1]["messages"])
            proxy.quiet()
        assert upstream.refusals == []
        for action, (before, after) in zip(actions[1:], pairwise(views), strict=True):
            if action != "condensed":
                assert after[: len(before)] == before
        blocks = [sum("Relevant Memories" in json.dumps(message) for message in view) for view in views]
        assert max(blocks) > 1


# -- subagents and side calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["tool", "inject", "inject+tool"])
def test_a_subagent_gets_no_memory(memory: str) -> None:
    with remembering(Searcher(SEARCH)) as (upstream, agent):
        agent.messages.append({"role": "user", "content": QUESTION})
        headers = [*HEADERS[:2], ("x-condenser-memory", memory), ("x-claude-code-session-id", "one")]
        for more in ((), (("x-claude-code-agent-id", "a2"),)):
            forced = [*headers, *more, ("x-condenser-force", "true")]
            answer = wire.post_json(agent.url, MESSAGES, agent.body(), forced)
            assert (answer.status, answer.action) == (200, "condensed")
        main, sub = upstream_bodies(upstream)[0], upstream_bodies(upstream)[-1]
        assert (len(main["tools"]) == len(sub["tools"])) == (memory == "inject")
        assert [FACT in json.dumps(body["messages"]) for body in (main, sub)] == ["inject" in memory, False]


def test_a_title_call_is_offered_no_search() -> None:
    title: Json = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    with remembering(Searcher(SEARCH)) as (upstream, agent):
        for turn in range(12):
            bed = {"role": "user", "content": f"Bed {turn} gets mint. " + "frost " * 200}
            agent.messages += [bed, {"role": "assistant", "content": [text("Noted.")]}]
        body = {"model": "m", "max_tokens": 9, "messages": [*agent.messages, {"role": "user", "content": "And?"}]}
        for members in ({}, title):
            headers = [*HEADERS, TOOL, ("x-condenser-force", "true")]
            assert wire.post_json(agent.url, MESSAGES, {**body, **members}, headers).status == 200
        assert ["tools" in sent for sent in upstream_bodies(upstream)] == [True, False]
