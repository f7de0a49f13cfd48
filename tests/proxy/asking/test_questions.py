"""The two forms of a question, and its credential."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from proxy.asking import ModelCall, question_for
from proxy.asking.dispatch import Caller, headers_for
from proxy.endpoints.chat import CHAT_ENDPOINT
from proxy.endpoints.endpoint import Question
from proxy.settings.tables import ModelRole
from strategies.core.effects import JUDGE, SUMMARIZER, Ask, Ballot
from tests.proxy.asking.support import ASK, CALLER

NEW_LIMIT, OLD_LIMIT = CHAT_ENDPOINT.reply_limits

# As no serialiser of ours would write it: odd spacing, a number beyond a double, text that is not escaped.
VIEW = '[ {"role":"user" , "content":"会话 é"},{"n":12345678901234567890,"role":"assistant","content":"ok"} ]'
TOOLS = '[ {"type" : "function", "function":{"name":"f","parameters":{"x":1e400}}} ]'
ON = Ask("", "Now record it.", 500, view=VIEW)


def body(ask: Ask, role: ModelRole | None = None, caller: Caller = CALLER, limit: str = NEW_LIMIT) -> bytes:
    return body_of(question_for(ask, {SUMMARIZER: role or ModelRole()}, caller), limit)


def body_of(call: ModelCall, limit: str = NEW_LIMIT) -> bytes:
    return call.endpoint.question(call.question, limit)


def read(ask: Ask, role: ModelRole | None = None, caller: Caller = CALLER, limit: str = NEW_LIMIT) -> Any:
    return json.loads(body(ask, role, caller, limit))


# -- isolated ----------------------------------------------------------------------------------------------


def test_a_question_is_one_system_and_one_user_message_and_a_limit() -> None:
    assert read(ASK, caller=replace(CALLER, members={"tools": TOOLS})) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Write it down."}, {"role": "user", "content": "<history>"}],
        "max_completion_tokens": 500,
    }


def test_the_limit_has_the_name_that_the_server_knows() -> None:
    assert read(ASK, limit=OLD_LIMIT)["max_tokens"] == 500


def test_sampling_parameters_are_sent_where_the_settings_have_them() -> None:
    found = read(ASK, ModelRole(temperature=0.5, model="small"))
    assert (found["temperature"], found["model"]) == (0.5, "small")


@pytest.mark.parametrize(("cap", "sent"), [(None, 500), (100, 100), (9_000, 9_000)])
def test_the_limit_of_an_answer_is_the_settings_if_they_have_one(cap: int | None, sent: int) -> None:
    assert read(ASK, ModelRole(max_tokens=cap))["max_completion_tokens"] == sent


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "会话 é 😀"])
def test_any_text_can_be_asked_about(text: str) -> None:
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


# -- continued ---------------------------------------------------------------------------------------------


def test_a_call_that_continues_a_view_sends_its_bytes() -> None:
    data = body(ON, caller=replace(CALLER, members={"tools": TOOLS}))
    assert f'"messages":{VIEW[:-2]},'.encode() in data
    assert f'"tools":{TOOLS},"tool_choice":"none"'.encode() in data


def test_a_view_is_followed_by_the_instruction_alone() -> None:
    found = read(ON)
    assert found["messages"][:-1] == json.loads(VIEW)
    assert found["messages"][-1] == {"role": "user", "content": "Now record it."}
    assert set(found) == {"model", "messages", "max_completion_tokens"}


@pytest.mark.parametrize("tools", ["null", "[]", " [ ] "])
def test_where_no_tools_are_offered_nothing_is_said_of_choosing_one(tools: str) -> None:
    found = read(ON, caller=replace(CALLER, members={"tools": tools}))
    assert found.get("tools") == json.loads(tools)
    assert "tool_choice" not in found


def continued(view: str, *, alternates: bool = False) -> list[Any]:
    question = Question("m", "", "x", 1, view=view, alternates=alternates)
    messages: list[Any] = json.loads(CHAT_ENDPOINT.question(question, NEW_LIMIT))["messages"]
    return messages


@pytest.mark.parametrize("view", ["[]", " [ ] ", '[{"role":"user"}]', '[\n{"role":"user"}\n]\n'])
def test_any_list_can_be_gone_on_from(view: str) -> None:
    assert continued(view) == [*json.loads(view), {"role": "user", "content": "x"}]


def test_a_view_goes_only_to_its_own_model_and_account() -> None:
    role = ModelRole(base_url="http://elsewhere/v1", model="small", api_key=SecretStr("sk-role"), temperature=0)
    asked = question_for(ON, {SUMMARIZER: role}, CALLER)
    assert asked.model.base_url is None
    assert headers_for(asked.model, CALLER) == [(b"authorization", b"Bearer sk-1"), (b"openai-project", b"p")]
    found = json.loads(body_of(asked))
    assert (found["model"], found["temperature"]) == ("m", 0)


# -- credentials -------------------------------------------------------------------------------------------


def test_the_callers_credential_goes_to_the_requests_own_upstream_only() -> None:
    assert headers_for(ModelRole(), CALLER) == [(b"authorization", b"Bearer sk-1"), (b"openai-project", b"p")]
    assert headers_for(ModelRole(base_url="http://elsewhere/v1"), CALLER) == []


@pytest.mark.parametrize("url", [None, "http://elsewhere/v1"])
def test_a_key_of_the_roles_own_is_the_only_credential(url: str | None) -> None:
    role = ModelRole(base_url=url, api_key=SecretStr("sk-role"))
    assert headers_for(role, CALLER) == [(b"authorization", b"Bearer sk-role")]


@pytest.mark.parametrize(("last", "added"), [("user", 2), ("tool", 2), ("assistant", 1), ("system", 1)])
def test_where_roles_must_alternate_a_question_follows_a_word_of_the_assistants(last: str, added: int) -> None:
    view = json.dumps([{"role": "user", "content": "one"}, {"role": last, "content": "two"}])
    messages = continued(view, alternates=True)
    assert len(messages) == 2 + added
    assert [each["role"] for each in messages[-added:]] == ["assistant", "user"][-added:]
