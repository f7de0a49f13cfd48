"""The summarizer: what is asked of a server, with whose credential, and how its answer is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from proxy.settings import ModelRole, UpstreamSettings
from proxy.summarizer import Caller, Summarizer, headers_for, read_answer
from proxy.upstream import JsonReply, Upstream
from strategies.core.effects import Answer, Ask, Ballot, Failure
from tests.support.recording import Exchange
from tests.support.replies import Reply, completion, error, hang, hang_up
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

ASK = Ask("Write it down.", "<history>", 500)
CALLER = Caller(
    "m", [(b"authorization", b"Bearer sk-1"), (b"openai-project", b"p"), (b"cookie", b"c"), (b"accept", b"*/*")]
)


def reply(body: Any, status: int = 200) -> JsonReply:
    return JsonReply(status, body if isinstance(body, bytes) else json.dumps(body).encode())


def chosen(message: Any, finish: str = "stop", **more: Any) -> JsonReply:
    return reply({"choices": [{"message": message, "finish_reason": finish}], **more})


# -- reading -----------------------------------------------------------------------------------------------


def test_an_answer_is_its_text_its_end_and_its_cost() -> None:
    found = read_answer(chosen({"content": "record"}, usage={"total_tokens": 7}))
    assert found == Answer("record", "stop", 7)


@pytest.mark.parametrize("message", [{"tool_calls": [{}]}, {"content": "x", "function_call": {"name": "f"}}])
def test_calls_in_an_answer_are_noticed(message: Any) -> None:
    found = read_answer(chosen(message, "tool_calls"))
    assert isinstance(found, Answer)
    assert found.called_tools


@pytest.mark.parametrize("content", [None, 5, ["part"], {"text": "x"}])
def test_content_that_is_no_text_is_empty(content: Any) -> None:
    assert read_answer(chosen({"content": content})) == Answer("", "stop")


@pytest.mark.parametrize("usage", [None, 5, {}, {"total_tokens": "7"}, {"total_tokens": None}])
def test_a_cost_that_is_not_told_is_nothing(usage: Any) -> None:
    assert read_answer(chosen({"content": "x"}, usage=usage)) == Answer("x", "stop")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"5",
        {"choices": []},
        {"choices": None},
        {"choices": {"0": {}}},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": None}]},
        b'{"choices":' + b"[" * 100_000,
    ],
    ids=lambda body: str(body)[:24],
)
def test_what_is_no_completion_is_unreadable(body: Any) -> None:
    assert read_answer(reply(body)) == Failure("unreadable")


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "rate-limited"), (400, "http-error"), (302, "http-error"), (500, "http-error")]
)
def test_a_status_that_is_no_success_is_a_failure(status: int, reason: str) -> None:
    assert read_answer(reply({"choices": [{"message": {"content": "x"}}]}, status)) == Failure(reason)


# -- credentials -------------------------------------------------------------------------------------------


def test_the_callers_credential_goes_to_the_requests_own_upstream_only() -> None:
    assert headers_for(ModelRole(), CALLER) == [(b"authorization", b"Bearer sk-1"), (b"openai-project", b"p")]
    assert headers_for(ModelRole(base_url="http://elsewhere/v1"), CALLER) == []


@pytest.mark.parametrize("url", [None, "http://elsewhere/v1"])
def test_a_key_of_the_roles_own_is_the_only_credential(url: str | None) -> None:
    role = ModelRole(base_url=url, api_key=SecretStr("sk-role"))
    assert headers_for(role, CALLER) == [(b"authorization", b"Bearer sk-role")]


# -- asking ------------------------------------------------------------------------------------------------


async def ask(upstream: ScriptedUpstream, role: ModelRole, *effects: Any, caller: Caller = CALLER) -> tuple[Any, ...]:
    client = Upstream(UpstreamSettings(base_url=upstream.base_url))
    try:
        return await Summarizer(client).resolve(effects or (ASK,), role, caller)
    finally:
        await client.close()


@pytest.mark.anyio
async def test_a_question_is_one_system_and_one_user_message_and_a_limit(upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("record"))
    assert await ask(upstream, ModelRole()) == (Answer("record", "stop", 10),)
    assert upstream.journal.only().json() == {
        "model": "m",
        "messages": [{"role": "system", "content": "Write it down."}, {"role": "user", "content": "<history>"}],
        "max_completion_tokens": 500,
    }


@pytest.mark.anyio
async def test_a_role_may_have_a_model_and_an_address_of_its_own(upstream: ScriptedUpstream) -> None:
    with ScriptedUpstream() as other:
        await ask(upstream, ModelRole(base_url=other.base_url + "/", model="small"))
        assert other.journal.only().json()["model"] == "small"
        assert other.journal.only().header("authorization") is None
    assert len(upstream.journal) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\x00", "会话 é 😀"])
async def test_any_text_can_be_asked_about(text: str, upstream: ScriptedUpstream) -> None:
    [found] = await ask(upstream, ModelRole(), Ask("s", text, 100))
    assert isinstance(found, Answer)
    assert upstream.journal.only().json()["messages"][1]["content"] == text


@pytest.mark.anyio
async def test_several_questions_are_asked_at_the_same_time(upstream: ScriptedUpstream) -> None:
    gate = Signal("all questions are there")

    def answers(exchange: Exchange) -> Reply:
        if len(upstream.journal.to()) == 3:
            gate.set()
        return completion(exchange.json()["messages"][1]["content"]).after(gate)

    upstream.answer(answers)
    found = await ask(upstream, ModelRole(), *(Ask("s", text, 100) for text in "abc"))
    assert [each.text for each in found] == ["a", "b", "c"]


@pytest.mark.anyio
async def test_a_server_that_knows_the_old_limit_only_is_asked_again(upstream: ScriptedUpstream) -> None:
    upstream.reply(error(400, "Unsupported parameter: 'max_completion_tokens'"), completion("record"))
    assert await ask(upstream, ModelRole()) == (Answer("record", "stop", 10),)
    assert [each.json().get("max_tokens") for each in upstream.journal] == [None, 500]


@pytest.mark.anyio
async def test_another_400_is_not_asked_again(upstream: ScriptedUpstream) -> None:
    upstream.reply(error(400, "no"))
    assert await ask(upstream, ModelRole()) == (Failure("http-error"),)
    assert len(upstream.journal) == 1


@pytest.mark.anyio
async def test_failures_are_results_too(upstream: ScriptedUpstream) -> None:
    upstream.reply(hang_up())
    assert await ask(upstream, ModelRole()) == (Failure("unreachable"),)
    assert await ask(upstream, ModelRole(base_url="http://127.0.0.1:9/v1")) == (Failure("unreachable"),)


@pytest.mark.anyio
async def test_a_server_that_says_nothing_is_left_after_the_roles_time(upstream: ScriptedUpstream) -> None:
    never = Signal("the end of the test")
    upstream.reply(hang(never))
    assert await ask(upstream, ModelRole(timeout=0.1)) == (Failure("timeout"),)
    never.set()


@pytest.mark.anyio
async def test_what_it_cannot_do_is_a_failure(upstream: ScriptedUpstream) -> None:
    assert await ask(upstream, ModelRole(), Ballot("s", "u", 3, 6, 10)) == (Failure("unknown-effect"),)
