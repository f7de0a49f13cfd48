"""Answers: what a chat completion says, as far as we read it. Nothing in it is believed to have a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.upstream import JsonReply
from strategies.core.effects import Answer, Failure


class Usage(NamedTuple):
    """Tokens of one call as the server told; 0 where it did not."""

    prompt: int = 0
    completion: int = 0
    total: int = 0


class Completion(NamedTuple):
    """The answers of one call, at least one of them readable; `usage` and each one's `tokens` are of all together."""

    answers: tuple[Answer | Failure, ...]
    usage: Usage


def read(reply: JsonReply) -> Completion | Failure:
    """A completion, or why there is none."""
    if reply.status == 429:
        return Failure("rate-limited")
    if reply.status // 100 != 2:
        return Failure("http-error")
    try:
        body = json.loads(reply.body)
        choices = list(body["choices"])
        usage = _usage(body.get("usage"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Failure("unreadable")
    answers = tuple(_answer(choice, usage.total) for choice in choices)
    if not any(isinstance(each, Answer) for each in answers):
        return Failure("unreadable")
    return Completion(answers, usage)


def _answer(choice: Any, tokens: int) -> Answer | Failure:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return Failure("unreadable")
    text = message.get("content")
    return Answer(
        text=text if isinstance(text, str) else "",
        finish_reason=str(choice.get("finish_reason")),
        tokens=tokens,
        called_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _usage(told: Any) -> Usage:
    if not isinstance(told, Mapping):
        return Usage()
    prompt, completion = _count(told.get("prompt_tokens")), _count(told.get("completion_tokens"))
    return Usage(prompt, completion, _count(told.get("total_tokens")) or prompt + completion)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
