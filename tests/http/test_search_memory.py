"""`search_memory`: the model searches what was said, inside the proxy, and its client never sees that it did."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from itertools import pairwise
from typing import Any

import pytest

from proxy.protocols.hidden_calls import NO_ANSWER
from tests.http.strict import problems
from tests.http.test_memory_injection import FACT, FORCE, QUESTION, diary, ending
from tests.support import replies, wire
from tests.support.admin_api import TOKEN, only_session
from tests.support.recording import CHAT
from tests.support.replies import ToolCall
from tests.support.searching import (
    CALLED,
    SEARCH,
    TOOL,
    assembled,
    is_prefix,
    offers_search,
    reply_calls,
    reply_of,
    reply_opening,
    search,
)
from tests.support.signals import Signal
from tests.support.stage import Message, Stage, agent, body_of, controls, proxy_with_upstream
from tests.support.wire import Answer

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
LOOKS = ToolCall("look", '{"at": "barrel"}', "call_look")
DAYS = 13
FOUND = "It hangs behind the blue barrel."
both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@contextmanager
def remembering(**settings: Any) -> Iterator[Stage]:
    """A stage on which a fact was said, and condensed away."""
    with proxy_with_upstream(strategy="recent", **settings) as stage:
        stage.ask(diary(DAYS), [*controls(session="s", window=4_096), FORCE])
        assert FACT not in str(stage.last_view)
        stage.forget()
        yield stage


def question() -> list[Message]:
    return ending(diary(DAYS), QUESTION)


def asks(stage: Stage, messages: Sequence[Message], streamed: bool, **members: Any) -> Answer:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    return stage.ask(messages, [*controls(session="s"), TOOL], **more, **members)


def chunks_of(answer: Answer) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with its one `[DONE]`."""
    events = [each.removeprefix("data: ") for each in answer.body.decode().split("\n\n") if each.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(each) for each in events]


def message_of(answer: Answer, streamed: bool) -> dict[str, Any]:
    """The reply as a client puts it together, with its finish reason and usage."""
    assert SEARCH not in answer.body.decode()
    if not streamed:
        body = json.loads(answer.body)
        return {**body["choices"][0]["message"], "finish": body["choices"][0]["finish_reason"], "usage": body["usage"]}
    return assembled(chunks_of(answer))


def sendable(message: dict[str, Any]) -> dict[str, Any]:
    return {key: message[key] for key in ("role", "content", "tool_calls") if key in message}


def views(stage: Stage) -> list[list[dict[str, Any]]]:
    return [each.json()["messages"] for each in stage.forwarded]


def goes_on(stage: Stage, messages: list[Message], streamed: bool, turns: int = 3) -> None:
    """The next turns, whose views must begin with all the earlier ones."""
    for turn in range(turns):
        messages = [*messages, {"role": "user", "content": f"Thanks, and what of day {turn + 20}?"}]
        stage.upstream.reply(reply_of(f"Nothing on day {turn + 20}.", streamed=streamed))
        reply = message_of(asks(stage, messages, streamed), streamed)
        messages = [*messages, sendable(reply)]
    seen = views(stage)
    assert all(is_prefix(earlier, later) for earlier, later in pairwise(seen))
    assert all(problems(view) == set() for view in seen)


# -- in every position ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("calls", [[search()], [search("zzz"), search(id="call_m2")]], ids=["one", "two in one round"])
def test_the_model_finds_what_was_condensed_away(calls: list[ToolCall], streamed: bool) -> None:
    with remembering() as stage:
        found = reply_of(FOUND, streamed=streamed, usage=(150, 7))
        stage.upstream.reply(reply_of(None, *calls, streamed=streamed), found)
        reply = message_of(asks(stage, question(), streamed), streamed)
        assert (reply["content"], reply["finish"]) == (FOUND, "stop")
        asked, *results = views(stage)[1][-1 - len(calls) :]
        assert asked == {"role": "assistant", "content": None, "tool_calls": [call.as_json() for call in calls]}
        assert FACT in results[-1]["content"]
        assert [each["tool_call_id"] for each in results] == [call.id for call in calls]
        goes_on(stage, [*question(), sendable(reply)], streamed)
        assert views(stage)[-1].count(results[-1]) == 1


def masked_history() -> tuple[list[Message], str]:
    """A history with a result that a view masks, and the text of that result."""
    printed = "\n".join(f"line {number} of the first report" for number in range(60))
    call = {"id": "call_r", "type": "function", "function": {"name": "report", "arguments": "{}"}}
    first = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "call_r", "content": printed}
    return [{"role": "user", "content": "Go."}, *first, result, *agent(12, lines=60)[1:]], printed


def test_a_handle_gives_back_what_was_masked() -> None:
    messages, printed = masked_history()
    with proxy_with_upstream(strategy="mask") as stage:
        stage.ask(messages, [*controls(session="s"), FORCE, TOOL])
        (handle,) = set(re.findall(r"result of report left out[^]]*; handle (\w+)\]", str(stage.last_view)))
        stage.forget()
        stage.upstream.reply(reply_of(None, search(handle), streamed=False), reply_of("So it is.", streamed=False))
        asks(stage, messages, False)
        told = views(stage)[-1][-1]["content"]
        assert "\n".join(f"> {line}" for line in printed.splitlines()) in told


def test_a_handle_means_nothing_in_another_session() -> None:
    messages, _ = masked_history()
    with proxy_with_upstream(strategy="mask") as stage:
        stage.ask(messages, [*controls(session="s"), FORCE, TOOL])
        (handle,) = set(re.findall(r"result of report left out[^]]*; handle (\w+)\]", str(stage.last_view)))
        other = [{"role": "user", "content": "Begin."}, *agent(12, lines=40)[1:]]
        stage.ask(other, [*controls(session="t"), FORCE, TOOL])
        stage.forget()
        stage.upstream.reply(reply_of(None, search(handle), streamed=False), reply_of("No.", streamed=False))
        stage.ask(other, [*controls(session="t"), TOOL])
        assert "first report" not in str(views(stage)[-1])


@both
def test_the_client_gets_its_own_calls_alone(streamed: bool) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search(), LOOKS, streamed=streamed))
        reply = message_of(asks(stage, question(), streamed, tools=[LOOK]), streamed)
        assert (reply["tool_calls"], reply["finish"]) == ([LOOKS.as_json()], "tool_calls")
        result = {"role": "tool", "tool_call_id": LOOKS.id, "content": "a barrel"}
        messages = [*question(), sendable(reply), result]
        stage.upstream.reply(reply_of(FOUND, streamed=streamed))
        final = message_of(asks(stage, messages, streamed, tools=[LOOK]), streamed)
        hidden, found, own, seen = views(stage)[1][-4:]
        assert hidden == {"role": "assistant", "content": None, "tool_calls": [search().as_json()]}
        assert FACT in found["content"]
        assert (own, seen) == (sendable(reply), result)
        goes_on(stage, [*messages, sendable(final)], streamed)


@both
@pytest.mark.parametrize("own", [[], [LOOK]], ids=["alone", "beside-a-tool"])
def test_a_model_that_never_stops_searching_is_stopped(streamed: bool, own: list[Any]) -> None:
    members = {"tools": own} if own else {}
    with remembering(memory={"max_rounds": 2}) as stage:
        stage.upstream.reply(*(reply_of(None, search(id=f"call_{each}"), streamed=streamed) for each in range(4)))
        reply = message_of(asks(stage, question(), streamed, **members), streamed)
        assert (reply["content"], reply["finish"]) == (NO_ANSWER, "stop")
        assert [offers_search(each) for each in stage.forwarded] == [True, True, False]
        assert "tool_calls" not in reply
        goes_on(stage, [*question(), sendable(reply)], streamed)


# -- the stream ----------------------------------------------------------------------------------------------


def test_text_flows_while_the_search_is_still_being_written() -> None:
    gate = Signal()
    with remembering() as stage:
        stage.upstream.reply(
            replies.stream(*reply_opening("Let me look. "), gate, *reply_calls(search()), CALLED),
            reply_of(FOUND, streamed=True),
        )
        with streaming(stage) as response:
            wire.until(response, b"look.")
            gate.set()
            assert b"barrel." in response.read()


@contextmanager
def streaming(stage: Stage) -> Iterator[HTTPResponse]:
    headers = [*wire.JSON, ("Authorization", f"Bearer {stage.key}"), *controls(session="s"), TOOL]
    body = json.dumps({"model": stage.model, "messages": question(), "stream": True}).encode()
    with wire.opened(stage.proxy.url, "POST", CHAT, body, headers) as response:
        yield response


@both
def test_the_usage_has_the_last_prompt_and_all_that_was_completed(streamed: bool) -> None:
    with remembering(admin={"token": TOKEN}) as stage:
        stage.upstream.reply(
            reply_of(None, search(), streamed=streamed, usage=(100, 10)),
            reply_of(FOUND, streamed=streamed, usage=(150, 7)),
        )
        usage = message_of(asks(stage, question(), streamed), streamed)["usage"]
        assert usage == {"prompt_tokens": 150, "completion_tokens": 17, "total_tokens": 167}
        assert only_session(stage.proxy.url)["totals"]["memory_tokens"] == 110


def test_a_client_that_leaves_after_a_search_ends_the_call() -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of("Hm. ", search(), streamed=True), replies.stream(*reply_opening("It"), Signal()))
        with streaming(stage) as response:
            assert response.read1()
            second = stage.upstream.journal.await_arrival(2)
        second.disconnected.wait()


# -- when it is offered, and run ------------------------------------------------------------------------------


def test_the_tools_of_the_client_keep_their_bytes_and_ours_comes_last() -> None:
    with remembering() as stage:
        tools = '[ {"type":"function", "function":{"name":"look","big":12345678901234567890}} ]'
        body = json.dumps({"model": stage.model, "messages": question()})[:-1] + f', "tools" : {tools} , "seed": 1.50}}'
        assert stage.post(body.encode(), [*controls(session="s"), TOOL]).status == 200
        sent = stage.forwarded[-1].body.decode()
        assert f'"tools" : {tools[:-1]},{{"type":"function","function":{{"name":"{SEARCH}"' in sent
        assert sent.endswith('] , "seed": 1.50}')


def test_a_body_without_tools_gets_them_once_something_was_condensed() -> None:
    with proxy_with_upstream(strategy="recent") as stage:
        stage.ask(diary(DAYS), [*controls(session="s"), TOOL])
        assert stage.forwarded[-1].body == stage.sent[-1]
        stage.ask(diary(DAYS), [*controls(session="s"), FORCE])
        assert offers_search(stage.forwarded[-1])
        stage.ask(question(), controls(session="s"))
        assert offers_search(stage.forwarded[-1])
        assert is_prefix(views(stage)[1][:-1], views(stage)[2])


@both
def test_a_clients_own_tool_of_that_name_is_left_to_it(streamed: bool) -> None:
    own = {"type": "function", "function": {"name": SEARCH, "parameters": {"type": "object", "properties": {}}}}
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search(), streamed=streamed))
        answer = asks(stage, question(), streamed, tools=[own])
        assert SEARCH in answer.body.decode()
        assert answer.reason == "memory-tool-taken"
        assert stage.forwarded[-1].json()["tools"] == [own]


@both
@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "look"}}], ids=str)
def test_where_the_client_chooses_the_tool_ours_is_offered_and_not_run(streamed: bool, choice: Any) -> None:
    with remembering() as stage:
        stage.upstream.reply(reply_of(None, search(), LOOKS, streamed=streamed))
        answer = asks(stage, question(), streamed, tools=[LOOK], tool_choice=choice)
        assert message_of(answer, streamed)["tool_calls"] == [LOOKS.as_json()]
        assert answer.reason == "memory-tool-not-run"
        (sent,) = stage.forwarded
        assert SEARCH in [each["function"]["name"] for each in sent.json()["tools"]]


@both
def test_of_several_choices_each_loses_its_hidden_calls(streamed: bool) -> None:
    with remembering() as stage:
        if streamed:
            chunks = [*replies.text_chunks("heads"), *reply_opening(None), *reply_calls(search()), CALLED]
            moved = [{**each, "choices": [{**each["choices"][0], "index": 1}]} for each in chunks[3:]]
            stage.upstream.reply(replies.stream(*chunks[:3], *moved))
        else:
            stage.upstream.reply(replies.completion("heads", "tails", tool_calls=[search()]))
        answer = asks(stage, question(), streamed, n=2)
        told = chunks_of(answer) if streamed else [answer.json()]
        ends = [(each["index"], each["finish_reason"]) for chunk in told for each in chunk["choices"]]
        assert [each for each in ends if each[1]] == [(0, "stop"), (1, "stop")]
        assert SEARCH not in answer.body.decode()
        assert len(stage.forwarded) == 1


@both
def test_an_upstream_that_takes_no_tools_is_remembered(streamed: bool) -> None:
    with remembering() as stage:
        error = replies.error(400, "this model does not support tools")
        stage.upstream.answer(lambda exchange: error if offers_search(exchange) else None)
        answer = asks(stage, question(), streamed)
        assert answer.reason == "memory-tool-refused"
        assert [offers_search(each) for each in stage.forwarded] == [True, False]
        answer = asks(stage, question(), streamed)
        assert answer.reason == "memory-tool-refused"
        assert [offers_search(each) for each in stage.forwarded] == [True, False, False]


def test_an_error_that_is_not_about_tools_is_the_clients() -> None:
    with remembering() as stage:
        stage.upstream.reply(*[replies.error(400, "no such model")] * 2)
        answer = stage.post(body_of(question()), [*controls(session="s"), TOOL])
        assert (answer.status, answer.json()["error"]["message"]) == (400, "no such model")
        assert [offers_search(each) for each in stage.forwarded] == [True, False]


def test_a_request_of_which_nothing_is_kept_offers_none() -> None:
    with proxy_with_upstream() as stage:
        stage.ask(diary(2), [*controls(session="s", no_store="true"), TOOL])
        assert not offers_search(stage.forwarded[-1])
