"""`search_memory` in the Responses API: the model searches inside the proxy, and its client never sees that it did."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from proxy.endpoints.hidden_calls import NAME, NO_ANSWER
from tests.http.test_responses import KEY, Agent, client_bodies, dropped_reasoning, response_in
from tests.support import wire
from tests.support.proxy import running_proxy
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message, reasoning

Json = dict[str, Any]

FACT = "The greenhouse key hangs behind the blue barrel."
QUESTION = "Where does the greenhouse key hang?"
ANSWER = "Behind the blue barrel."
SEARCH = function_call(NAME, {"query": "greenhouse key"})
LOOK = function_call("read", {"path": "a"})
HEADERS = [*KEY, ("x-condenser-session", "s"), ("x-condenser-memory", "tool")]
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Searcher:
    """A model that opens its answer to the question for the key with these items, and answers with the result."""

    def __init__(self, *opening: Json, always: bool = False, last: Sequence[Json] = ()) -> None:
        self.opening = opening
        self.always = always
        self.last = last

    def __call__(self, body: Mapping[str, Any]) -> Sequence[Json] | str:
        last = body["input"][-1]
        is_result = last.get("type") == "function_call_output"
        if self.always and body.get("tool_choice") != "none" and (is_result or QUESTION in json.dumps(last)):
            return list(self.opening)
        if is_result and self.last:
            return self.last
        if is_result and FACT in json.dumps(last):
            return [reasoning("There it is."), message(ANSWER)]
        return list(self.opening) if QUESTION in json.dumps(last) else "Yes."


def diary() -> list[Json]:
    """A long conversation in whose beginning the fact is said."""
    items: list[Json] = [{"role": "user", "content": "Keep a diary of my garden."}]
    for turn in range(12):
        noted = FACT if turn == 1 else f"Noted {turn}. " + "water " * 60
        items += [message(noted), {"role": "user", "content": f"Bed {turn} gets kale. " + "frost " * 60}]
    return items


@contextmanager
def remembering(script: Searcher, *, store: bool = False) -> Iterator[tuple[StrictResponses, Agent]]:
    """An upstream and a client before which a fact was said, and condensed away."""
    with StrictResponses(script) as upstream, running_proxy(upstream.url, strategy="recent", window=8_192) as proxy:
        agent = Agent(proxy.url, store=store)
        agent.items = diary()
        ask(agent, False, ("x-condenser-force", "true"))
        proxy.quiet()
        assert FACT not in json.dumps(client_bodies(upstream)[-1]["input"])
        upstream.journal.clear()
        agent.items.append({"role": "user", "content": QUESTION})
        yield upstream, agent


def ask(agent: Agent, streamed: bool, *headers: tuple[str, str]) -> Json:
    """The response to the client's items, to which its output is added."""
    answer = wire.post_json(agent.url, RESPONSES, {**agent.body(), "stream": streamed}, [*HEADERS, *headers])
    assert answer.status == 200, answer.body
    assert NAME not in answer.body.decode()
    response = response_in(answer)
    agent.items += response["output"]
    return response


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def upstream_bodies(upstream: StrictResponses) -> list[Json]:
    return [exchange.json() for exchange in upstream.journal.to(RESPONSES)]


SAID_FIRST = [reasoning("I say so."), message("Let me look.")]


@both
@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("thought", [True, False])
@pytest.mark.parametrize("said_first", [SAID_FIRST, []])
def test_a_search_stays_hidden(said_first: list[Json], thought: bool, store: bool, streamed: bool) -> None:
    opening = (*said_first, *([reasoning("I search.")] if thought else []), SEARCH)
    with remembering(Searcher(*opening), store=store) as (upstream, agent):
        response = ask(agent, streamed)
        assert kinds(response) == [*(item["type"] for item in said_first), "reasoning", "message"]
        assert response["output"][-1]["content"][0]["text"] == ANSWER
        first, second = upstream_bodies(upstream)
        assert second["tools"] == first["tools"]
        assert second["input"][: len(first["input"])] == first["input"]
        assert FACT in second["input"][-1]["output"]
        # The client sends all of it back, and the upstream takes that after the hidden round.
        agent.items.append({"role": "user", "content": "Thanks."})
        ask(agent, streamed)
        assert upstream.refusals == []
        assert upstream_bodies(upstream)[-1]["input"][: len(second["input"])] == second["input"]


@both
def test_a_search_beside_a_clients_call_serves_the_next_request(streamed: bool) -> None:
    with remembering(Searcher(reasoning("Both."), SEARCH, LOOK)) as (upstream, agent):
        response = ask(agent, streamed)
        assert kinds(response) == ["function_call"]
        call = response["output"][-1]["call_id"]
        agent.items.append({"type": "function_call_output", "call_id": call, "output": "nothing"})
        ask(agent, streamed)
        assert upstream.refusals == []
        assert FACT in json.dumps(upstream_bodies(upstream)[-1]["input"])


@both
def test_in_the_last_round_no_tool_may_be_called(streamed: bool) -> None:
    with remembering(Searcher(SEARCH, always=True)) as (upstream, agent):
        ask(agent, streamed)
        bodies = upstream_bodies(upstream)
        assert len(bodies) > 1
        assert bodies[-1]["tool_choice"] == "none"
        assert bodies[-1]["tools"] == bodies[0]["tools"]
        assert upstream.refusals == []


@both
def test_a_reply_without_an_answer_can_be_sent_back(streamed: bool) -> None:
    with remembering(Searcher(SEARCH, always=True, last=[reasoning("I give up.")])) as (upstream, agent):
        response = ask(agent, streamed)
        assert kinds(response) == ["reasoning", "message"]
        assert response["output"][-1]["content"][0]["text"] == NO_ANSWER
        agent.items.append({"role": "user", "content": "Thanks."})
        ask(agent, streamed)
        assert upstream.refusals == []


@both
def test_the_usage_has_the_output_of_all_replies(streamed: bool) -> None:
    with remembering(Searcher(reasoning("I search."), SEARCH)) as (upstream, agent):
        usage = ask(agent, streamed)["usage"]
        replies = [response_of(exchange.sent)["usage"] for exchange in upstream.journal.to(RESPONSES)]
        assert usage["output_tokens"] == sum(reply["output_tokens"] for reply in replies)
        assert usage["input_tokens"] == replies[-1]["input_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def response_of(body: bytes) -> Json:
    """The response in a reply, whole or in events."""
    if body.startswith(b"{"):
        return dict(json.loads(body))
    return dict(json.loads(list(wire.events(body))[-1])["response"])


def thinker(body: Mapping[str, Any]) -> Sequence[Json]:
    """A model that reasons, looks, reasons and answers."""
    if body["input"][-1].get("type") == "function_call_output":
        return [reasoning("I see."), message(ANSWER)]
    return [reasoning("Let me look."), LOOK]


@both
def test_a_block_of_memory_stays_so_that_reasoning_after_it_counts(streamed: bool) -> None:
    with StrictResponses(thinker) as upstream, running_proxy(upstream.url, strategy="recent", window=8_192) as proxy:
        inject = [*KEY, ("x-condenser-session", "s"), ("x-condenser-memory", "inject")]
        agent = Agent(proxy.url, stream=streamed, headers=[*inject, ("x-condenser-force", "true")])
        agent.items = diary()
        agent.items[-1] = {"role": "user", "content": QUESTION}
        agent.turn()
        agent.headers = inject
        agent.turn()
        agent.items.append({"role": "user", "content": "And where does the greenhouse door hang?"})
        for _ in range(4):
            agent.turn()
        assert all("Relevant Memories" in json.dumps(body["input"]) for body in client_bodies(upstream))
        assert dropped_reasoning(upstream) == []
        assert upstream.refusals == []
