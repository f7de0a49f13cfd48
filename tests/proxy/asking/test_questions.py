"""The two forms of a question, its credential, and how a completion of any form is read."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import SecretStr

from proxy import asking
from proxy.asking import Completion, ModelCall, question_for
from proxy.asking.dispatch import Caller, address_for, headers_for
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Question
from proxy.servers.upstream import JsonReply
from proxy.servers.upstream.choice import Destination
from proxy.settings.tables import ModelRole, UpstreamEntry
from strategies.core.effects import JUDGE, SUMMARIZER, Answer, Ask, Ballot, Failure
from tests.proxy.asking.support import ASK, CALLER

NEW_LIMIT, OLD_LIMIT = CHAT_ENDPOINT.reply_limits

# As no serialiser of ours would write it: odd spacing, a number beyond a double, text that is not escaped.
VIEW = '[ {"role":"user" , "content":"会话 é"},{"n":12345678901234567890,"role":"assistant","content":"ok"} ]'
TOOLS = '[ {"type" : "function", "function":{"name":"f","parameters":{"x":1e400}}} ]'
ON = Ask("", "Now record it.", 500, view=VIEW)


def body(ask: Ask, role: ModelRole | None = None, caller: Caller = CALLER, *without: str) -> bytes:
    return body_of(question_for(ask, {SUMMARIZER: role or ModelRole()}, caller), *without)


def body_of(call: ModelCall, *without: str) -> bytes:
    return call.endpoint.question(replace(call.question, without=frozenset(without)))


def read(ask: Ask, role: ModelRole | None = None, caller: Caller = CALLER, *without: str) -> Any:
    return json.loads(body(ask, role, caller, *without))


def test_a_question_is_one_system_and_one_user_message_within_its_limit() -> None:
    assert read(ASK, caller=replace(CALLER, members={"tools": TOOLS})) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Write it down."}, {"role": "user", "content": "<history>"}],
        "max_completion_tokens": 500,
    }
    assert read(ASK, None, CALLER, NEW_LIMIT)[OLD_LIMIT] == 500
    assert read(ASK, None, CALLER, NEW_LIMIT, OLD_LIMIT).keys() == {"model", "messages"}
    found = read(ASK, ModelRole(temperature=0.5, model="small"))
    assert (found["temperature"], found["model"]) == (0.5, "small")
    for cap, sent in [(None, 500), (100, 100), (9_000, 9_000)]:
        assert read(ASK, ModelRole(max_tokens=cap))["max_completion_tokens"] == sent
    for text in ["\ud800", "a\udfffb", "\x00", "会话 é 😀"]:
        assert read(Ask("s", text, 100))["messages"][1]["content"] == text


def test_several_votes_are_asked_for_by_their_number() -> None:
    ballot, roles = Ballot("Judge it.", "<history>", 5, 15, 200), {JUDGE: ModelRole()}
    one, five = (json.loads(body_of(question_for(ballot, roles, CALLER, n))) for n in (1, 5))
    assert one == {
        "model": "m",
        "messages": [{"role": "system", "content": "Judge it."}, {"role": "user", "content": "<history>"}],
        "max_completion_tokens": 200,
    }
    assert five == {**one, "n": 5}


def test_a_view_goes_on_byte_for_byte_with_the_instruction_alone() -> None:
    data = body(ON, caller=replace(CALLER, members={"tools": TOOLS}))
    assert f'"messages":{VIEW[:-2]},'.encode() in data
    assert f'"tools":{TOOLS},"tool_choice":"none"'.encode() in data
    found = read(ON)
    assert found["messages"][:-1] == json.loads(VIEW)
    assert found["messages"][-1] == {"role": "user", "content": "Now record it."}
    assert set(found) == {"model", "messages", "max_completion_tokens"}


def test_where_no_tools_are_offered_nothing_is_said_of_choosing_one() -> None:
    for tools in ["null", "[]", " [ ] "]:
        found = read(ON, caller=replace(CALLER, members={"tools": tools}))
        assert found.get("tools") == json.loads(tools)
        assert "tool_choice" not in found


def continued(view: str, *, alternates: bool = False) -> list[Any]:
    question = Question("m", "", "x", 1, view=view, alternates=alternates)
    messages: list[Any] = json.loads(CHAT_ENDPOINT.question(question))["messages"]
    return messages


def test_any_view_can_be_gone_on_from_where_roles_must_alternate_too() -> None:
    for view in ["[]", " [ ] ", '[{"role":"user"}]', '[\n{"role":"user"}\n]\n']:
        assert continued(view) == [*json.loads(view), {"role": "user", "content": "x"}]
    for last, added in [("user", 2), ("tool", 2), ("assistant", 1), ("system", 1)]:
        view = json.dumps([{"role": "user", "content": "one"}, {"role": last, "content": "two"}])
        messages = continued(view, alternates=True)
        assert len(messages) == 2 + added
        assert [each["role"] for each in messages[-added:]] == ["assistant", "user"][-added:]


def test_a_view_goes_only_to_its_own_model_and_account() -> None:
    role = ModelRole(base_url="http://elsewhere/v1", model="small", api_key=SecretStr("sk-role"), temperature=0)
    asked = question_for(ON, {SUMMARIZER: role}, CALLER)
    assert asked.model.base_url is None
    assert headers_for(asked.model, CALLER) == [(b"authorization", b"Bearer sk-1"), (b"openai-beta", b"b")]
    found = json.loads(body_of(asked))
    assert (found["model"], found["temperature"]) == ("m", 0)


def test_a_credential_goes_only_to_the_server_it_is_for() -> None:
    assert headers_for(ModelRole(), CALLER) == [(b"authorization", b"Bearer sk-1"), (b"openai-beta", b"b")]
    assert headers_for(ModelRole(base_url="http://elsewhere/v1"), CALLER) == []
    for url in [None, "http://elsewhere/v1"]:
        role = ModelRole(base_url=url, api_key=SecretStr("sk-role"))
        assert headers_for(role, CALLER) == [(b"authorization", b"Bearer sk-role")]


def test_a_model_at_a_named_upstream_is_asked_in_its_protocol_with_its_own_key() -> None:
    elsewhere = UpstreamEntry.model_validate(
        {"name": "writer", "base_url": "http://w", "api_key": "sk-w", "protocols": ["messages"]}
    )
    role = ModelRole(upstream="writer", model="small").at(elsewhere)
    asked = question_for(Ask("s", "u", 9), {SUMMARIZER: role}, CALLER)
    assert (asked.endpoint.path, address_for(role, CALLER)) == ("/v1/messages", "http://w/v1")
    assert headers_for(role, CALLER) == [(b"x-api-key", b"sk-w"), (b"anthropic-version", b"2023-06-01")]
    keyless = ModelRole(upstream="writer").at(elsewhere.model_copy(update={"api_key": None}))
    assert headers_for(keyless, CALLER) == [(b"anthropic-version", b"2023-06-01")]
    # A request that goes there itself has the credential, the endpoint and the query for it.
    there = replace(CALLER, upstream=Destination("writer", "http://w/v1"))
    assert headers_for(keyless, there) == headers_for(role, there) == headers_for(ModelRole(), there)
    assert question_for(Ask("s", "u", 9), {SUMMARIZER: role}, there).endpoint is CALLER.endpoint


read_completion = partial(asking.read_completion, endpoint=CHAT_ENDPOINT)


def reply(body: Any, status: int = 200) -> JsonReply:
    return JsonReply(status, body if isinstance(body, bytes) else json.dumps(body).encode())


def chosen(message: Any, finish: str = "stop", **more: Any) -> JsonReply:
    return reply({"choices": [{"message": message, "finish_reason": finish}], **more})


def only(reply: JsonReply) -> Answer:
    found = read_completion(reply)
    assert isinstance(found, Completion)
    (answer,) = found.answers
    assert isinstance(answer, Answer)
    return answer


def test_an_answer_is_its_text_its_calls_its_end_and_its_cost() -> None:
    assert only(chosen({"content": "record"}, usage={"total_tokens": 7})) == Answer("record", "stop", 7)
    parts = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "Goal: "}, {"type": "text", "text": "x"}, 7]
    assert only(chosen({"content": parts})).text == "Goal: x"
    found = read_completion(chosen({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 2}))
    assert isinstance(found, Completion)
    assert found.tokens == 11
    for message in [{"tool_calls": [{}]}, {"content": "x", "function_call": {"name": "f"}}]:
        assert only(chosen(message, "tool_calls")).called_tools
    for content in [None, 5, ["part"], {"text": "x"}]:
        assert only(chosen({"content": content})) == Answer("", "stop")
    for usage in [None, 5, {}, {"total_tokens": "7"}, {"total_tokens": None}, {"total_tokens": -7}]:
        assert only(chosen({"content": "x"}, usage=usage)) == Answer("x", "stop")


def test_what_is_no_completion_is_unreadable_each_answer_by_itself() -> None:
    found = read_completion(reply({"choices": [{"message": {"content": "a"}}, None, {"message": {"content": "b"}}]}))
    assert isinstance(found, Completion)
    assert found.answers == (Answer("a", "None"), Failure("unreadable"), Answer("b", "None"))
    no_choices: list[Any] = [[], None, {"0": {}}, [None], [{}], [{"message": "text"}], [{"message": None}]]
    for choices in no_choices:
        assert read_completion(reply({"choices": choices})) == Failure("unreadable")
    for body in (b"", b"<html>", b"\xff\xfe", b"null", b"[]", b"5", b'{"choices":' + b"[" * 100_000):
        assert read_completion(reply(body)) == Failure("unreadable")
