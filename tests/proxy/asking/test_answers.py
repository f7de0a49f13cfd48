"""Reading completions of any form."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from proxy import asking
from proxy.asking import Completion
from proxy.endpoints.chat import CHAT_ENDPOINT
from proxy.upstream import JsonReply
from strategies.core.effects import Answer, Failure

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


def test_an_answer_is_its_text_its_end_and_its_cost() -> None:
    assert only(chosen({"content": "record"}, usage={"total_tokens": 7})) == Answer("record", "stop", 7)


def test_a_usage_without_a_total_is_added_up() -> None:
    found = read_completion(chosen({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 2}))
    assert isinstance(found, Completion)
    assert found.tokens == 11


@pytest.mark.parametrize("message", [{"tool_calls": [{}]}, {"content": "x", "function_call": {"name": "f"}}])
def test_calls_in_an_answer_are_noticed(message: Any) -> None:
    assert only(chosen(message, "tool_calls")).called_tools


@pytest.mark.parametrize("content", [None, 5, ["part"], {"text": "x"}])
def test_content_that_is_no_text_is_empty(content: Any) -> None:
    assert only(chosen({"content": content})) == Answer("", "stop")


def test_content_in_parts_is_the_text_of_its_text_parts() -> None:
    parts = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "Goal: "}, {"type": "text", "text": "x"}, 7]
    assert only(chosen({"content": parts})).text == "Goal: x"


@pytest.mark.parametrize("usage", [None, 5, {}, {"total_tokens": "7"}, {"total_tokens": None}, {"total_tokens": -7}])
def test_a_cost_that_is_not_told_is_nothing(usage: Any) -> None:
    assert only(chosen({"content": "x"}, usage=usage)) == Answer("x", "stop")


def test_of_several_answers_each_is_read_by_itself() -> None:
    found = read_completion(reply({"choices": [{"message": {"content": "a"}}, None, {"message": {"content": "b"}}]}))
    assert isinstance(found, Completion)
    assert found.answers == (Answer("a", "None"), Failure("unreadable"), Answer("b", "None"))


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
    assert read_completion(reply(body)) == Failure("unreadable")


@pytest.mark.parametrize(
    ("status", "reason"), [(429, "rate-limited"), (400, "http-error"), (302, "http-error"), (500, "http-error")]
)
def test_a_status_that_is_no_success_is_a_failure(status: int, reason: str) -> None:
    assert read_completion(reply({"choices": [{"message": {"content": "x"}}]}, status)) == Failure(reason)
