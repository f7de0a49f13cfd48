"""`search_memory` for agents of both APIs: the model searches inside the proxy, and its client never sees that."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from proxy.protocols.hidden_calls import NAME, NO_ANSWER
from tests.http import test_messages, test_responses
from tests.http.test_agents import MESSAGES, RESPONSES, Api
from tests.support import messages_upstream, wire
from tests.support.messages_upstream import StrictMessages, text, thinking
from tests.support.proxy import proxy_before
from tests.support.responses_upstream import StrictResponses, function_call, message, reasoning

Json = dict[str, Any]

FACT = "The greenhouse key hangs behind the blue barrel."
QUESTION = "Where does the greenhouse key hang?"
ANSWER = "Behind the blue barrel."
FORCE = ("x-condenser-force", "true")
NO_CALL = ("none", {"type": "none"})


@dataclass(frozen=True)
class Speech:
    """How models and clients of one API say things; `more` is what its agent is made with."""

    api: Api
    think: Callable[[str], Json]
    say: Callable[[str], Json]
    call: Callable[[str, Json], Json]
    more: Json = field(default_factory=dict)

    def history(self, agent: Any) -> list[Json]:
        listed: list[Json] = agent.messages if self.api is MESSAGES else agent.items
        return listed

    def reply(self, *parts: Json) -> list[Json]:
        """What a model has said, as its client sends it back."""
        return [{"role": "assistant", "content": list(parts)}] if self.api is MESSAGES else list(parts)

    def result(self, call: Json) -> Json:
        if self.api is MESSAGES:
            return {"role": "user", "content": [test_messages.result(call["id"], "nothing")]}
        return {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}

    def parts(self, answer: wire.Answer) -> list[Json]:
        if self.api is MESSAGES:
            return test_messages.said_in(answer)
        output: list[Json] = test_responses.response_in(answer)["output"]
        return output

    def opening(self, names: str) -> list[Json]:
        """The parts of a reply by their names."""
        named = {
            "think": self.think("I search."),
            "say": self.say("Let me look."),
            "search": self.call(NAME, {"query": "greenhouse key"}),
            "read": self.call("read", {"path": "a"}),
        }
        return [named[each] for each in names.split()]


SPEECHES = {
    "messages": Speech(MESSAGES, thinking, text, messages_upstream.tool_use),
    "responses": Speech(RESPONSES, reasoning, message, function_call),
    "stored responses": Speech(RESPONSES, reasoning, message, function_call, {"store": True}),
}
each_speech = pytest.mark.parametrize("speech", SPEECHES.values(), ids=SPEECHES)
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@dataclass(frozen=True)
class Searcher:
    """A model that opens its answer to the question so, and goes on with what was found, or searches on and on."""

    speech: Speech
    names: str
    always: bool = False

    def __call__(self, body: Mapping[str, Any]) -> Sequence[Json] | str:
        last = json.dumps(body[self.speech.api.listed][-1])
        is_result = "tool_result" in last or "function_call_output" in last
        if body.get("tool_choice") in NO_CALL and self.always:
            return [self.speech.think("I give up.")]
        if is_result and FACT in last and not self.always:
            return [self.speech.think("There it is."), self.speech.say(ANSWER)]
        searches = QUESTION in last or (self.always and is_result)
        return self.speech.opening(self.names) if searches else "Yes."


def diary(speech: Speech) -> list[Json]:
    """A long conversation in whose beginning the fact is said."""
    items: list[Json] = [{"role": "user", "content": "Keep a diary of my garden."}]
    for turn in range(12):
        noted = FACT if turn == 1 else f"Noted {turn}. " + "water " * 60
        question = {"role": "user", "content": f"Bed {turn} gets kale. " + "frost " * 60}
        items += [*speech.reply(speech.say(noted)), question]
    return items


@contextmanager
def remembering(speech: Speech, names: str, *, always: bool = False) -> Iterator[tuple[Any, Any]]:
    """An upstream and a client before which a fact was said, and condensed away; then it is asked for."""
    server = speech.api.upstream(Searcher(speech, names, always))
    with proxy_before(server, strategy="recent", window=8_192) as (upstream, proxy):
        agent = speech.api.tests.Agent(proxy.url, **speech.more)
        speech.history(agent)[:] = diary(speech)
        ask(speech, agent, False, FORCE)
        proxy.quiet()
        assert FACT not in json.dumps(speech.api.views(upstream)[-1])
        upstream.journal.clear()
        speech.history(agent).append({"role": "user", "content": QUESTION})
        yield upstream, agent


def ask(speech: Speech, agent: Any, streamed: bool, *headers: tuple[str, str]) -> wire.Answer:
    """The reply to the client's history, to which it is added; it tells of no search."""
    own = [*speech.api.key, ("x-condenser-session", "s"), ("x-condenser-memory", "tool"), *headers]
    answer = wire.post_json(agent.url, speech.api.path, {**agent.body(), "stream": streamed}, own)
    assert answer.status == 200, answer.body
    assert NAME not in answer.body.decode()
    speech.history(agent).extend(speech.reply(*speech.parts(answer)))
    return answer


def texts(parts: Sequence[Json]) -> list[str]:
    said = [each["content"][0] if each["type"] == "message" else each for each in parts]
    return [each["text"] for each in said if each["type"] in ("text", "output_text")]


def bodies(speech: Speech, upstream: Any) -> list[Json]:
    return [exchange.json() for exchange in upstream.journal.to(speech.api.path)]


@each_speech
@both
@pytest.mark.parametrize("names", ["search", "think search", "say search", "think say think search"])
def test_a_search_is_run_and_neither_call_nor_result_reaches_the_client(
    names: str, streamed: bool, speech: Speech
) -> None:
    with remembering(speech, names) as (upstream, agent):
        parts, listed = speech.parts(ask(speech, agent, streamed)), speech.api.listed
        assert texts(parts) == ["Let me look."] * names.count("say") + [ANSWER]
        if speech.api is RESPONSES:  # what was thought before the search is bound to it, and goes with it
            seen = ["reasoning", "message"] if "think say" in names else ["message"] * names.count("say")
            assert [each["type"] for each in parts] == [*seen, "reasoning", "message"]
        first, second = bodies(speech, upstream)
        assert second["tools"] == first["tools"]
        assert second[listed][: len(first[listed])] == first[listed]
        assert FACT in json.dumps(second[listed][-1])
        # The client sends all of it back, and the upstream takes that behind the hidden round.
        speech.history(agent).append({"role": "user", "content": "Thanks."})
        ask(speech, agent, streamed)
        assert upstream.refusals == []
        assert bodies(speech, upstream)[-1][listed][: len(second[listed])] == second[listed]


@each_speech
@both
def test_a_search_beside_a_clients_call_serves_the_next_request(streamed: bool, speech: Speech) -> None:
    with remembering(speech, "think search read") as (upstream, agent):
        parts = speech.parts(ask(speech, agent, streamed))
        (call,) = [each for each in parts if each["type"] in ("tool_use", "function_call")]
        assert call["name"] == "read"
        speech.history(agent).append(speech.result(call))
        ask(speech, agent, streamed)
        assert upstream.refusals == []
        assert FACT in json.dumps(speech.api.views(upstream)[-1])


@each_speech
@both
def test_in_the_last_round_no_tool_may_be_called(streamed: bool, speech: Speech) -> None:
    with remembering(speech, "search", always=True) as (upstream, agent):
        parts = speech.parts(ask(speech, agent, streamed))
        first, *_, last = bodies(speech, upstream)
        assert last["tool_choice"] in NO_CALL
        assert last["tools"] == first["tools"]
        assert texts(parts) == [NO_ANSWER]
        speech.history(agent).append({"role": "user", "content": "Thanks."})
        ask(speech, agent, streamed)
        assert upstream.refusals == []


@each_speech
@both
def test_the_usage_has_the_output_of_all_replies(streamed: bool, speech: Speech) -> None:
    with remembering(speech, "think search") as (upstream, agent):
        usage = usage_in(ask(speech, agent, streamed).body)
        replies = [usage_in(exchange.sent) for exchange in upstream.journal.to(speech.api.path)]
        assert len(replies) == 2
        assert usage["output_tokens"] == sum(reply["output_tokens"] for reply in replies)
        if speech.api is RESPONSES:
            assert usage["input_tokens"] == replies[-1]["input_tokens"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def usage_in(body: bytes) -> dict[str, int]:
    """The usage of a reply, whole or in events, where one event has it at the end."""
    ends = ("message_delta", "response.completed")
    events = [json.loads(body)] if body.startswith(b"{") else map(json.loads, wire.events(body))
    (ended,) = [each for each in events if "usage" in each or each["type"] in ends]
    usage: dict[str, int] = ended.get("response", ended)["usage"]
    return usage


# -- memory blocks -----------------------------------------------------------------------------------------


def pondering(body: Mapping[str, Any]) -> Sequence[Json] | str:
    """A model that thinks before each of its long answers, and summarizes when it is asked to."""
    if test_messages.is_own(dict(body)) and "system" not in body:
        return "<summary>Beds were planted.</summary>"
    number = len(body["messages"])
    return [thinking(f"Hm {number}."), text(f"Bed {number} is done. " + "water " * 250)]


@pytest.mark.parametrize("strategy", ["recent", "rolling"])
def test_a_memory_block_stays_at_its_place_so_that_thinking_stays_valid(strategy: str) -> None:
    server = StrictMessages(pondering, window=8_192)
    with proxy_before(server, strategy=strategy, window=8_192) as (upstream, proxy):
        agent = test_messages.Agent(proxy.url)
        agent.messages = [{"role": "user", "content": FACT}]
        headers = [*MESSAGES.key, ("x-condenser-session", "s"), ("x-condenser-memory", "inject")]
        actions: list[str | None] = []
        for turn in range(48):
            answer = wire.post_json(agent.url, MESSAGES.path, agent.body(), headers)
            assert answer.status == 200, answer.body
            actions.append(answer.action)
            asked = f"What did we say about bed {turn // 3}?" if turn % 3 == 0 else f"Bed {turn}: " + "frost " * 60
            said = {"role": "assistant", "content": test_messages.said_in(answer)}
            agent.messages += [said, {"role": "user", "content": asked}]
            proxy.quiet()
        assert upstream.refusals == []
        views = MESSAGES.views(upstream)
        for action, (before, after) in zip(actions[1:], pairwise(views), strict=True):
            assert action == "condensed" or after[: len(before)] == before
        assert max(sum("Relevant Memories" in json.dumps(each) for each in view) for view in views) > 1


def thinker(body: Mapping[str, Any]) -> Sequence[Json]:
    """A model that reasons, looks, reasons and answers."""
    if body["input"][-1].get("type") == "function_call_output":
        return [reasoning("I see."), message(ANSWER)]
    return [reasoning("Let me look."), function_call("read", {"path": "a"})]


@both
def test_a_block_of_memory_stays_so_that_reasoning_after_it_counts(streamed: bool) -> None:
    with proxy_before(StrictResponses(thinker), strategy="recent", window=8_192) as (upstream, proxy):
        inject = [*RESPONSES.key, ("x-condenser-session", "s"), ("x-condenser-memory", "inject")]
        agent = test_responses.Agent(proxy.url, stream=streamed, headers=[*inject, FORCE])
        agent.items = [*diary(SPEECHES["responses"])[:-1], {"role": "user", "content": QUESTION}]
        agent.turn()
        agent.headers = inject
        agent.turn()
        agent.items.append({"role": "user", "content": "And where does the greenhouse door hang?"})
        for _ in range(4):
            agent.turn()
        assert all("Relevant Memories" in json.dumps(view) for view in RESPONSES.views(upstream))
        assert test_responses.dropped_reasoning(upstream) == []
        assert upstream.refusals == []


# -- subagents and side calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["tool", "inject", "inject+tool"])
def test_a_subagent_gets_no_memory(memory: str) -> None:
    speech = SPEECHES["messages"]
    with remembering(speech, "search") as (upstream, agent):
        headers = [*MESSAGES.key, ("x-condenser-memory", memory), ("x-claude-code-session-id", "one"), FORCE]
        for more in ((), (("x-claude-code-agent-id", "a2"),)):
            answer = wire.post_json(agent.url, MESSAGES.path, agent.body(), [*headers, *more])
            assert (answer.status, answer.action) == (200, "condensed")
        main, *_, sub = bodies(speech, upstream)
        assert (len(main["tools"]) == len(sub["tools"])) == (memory == "inject")
        assert [FACT in json.dumps(body["messages"]) for body in (main, sub)] == ["inject" in memory, False]


def test_a_title_call_is_offered_no_search() -> None:
    title: Json = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    speech = SPEECHES["messages"]
    with remembering(speech, "search") as (upstream, agent):
        for turn in range(12):
            bed = {"role": "user", "content": f"Bed {turn} gets mint. " + "frost " * 200}
            agent.messages += [*speech.reply(text("Noted.")), bed]
        body = {"model": "m", "max_tokens": 9, "messages": agent.messages}
        headers = [*MESSAGES.key, ("x-condenser-session", "s"), ("x-condenser-memory", "tool"), FORCE]
        for members in ({}, title):
            assert wire.post_json(agent.url, MESSAGES.path, {**body, **members}, headers).status == 200
        assert ["tools" in sent for sent in bodies(speech, upstream)] == [True, False]
