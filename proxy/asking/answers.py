"""Reads a chat completion, as far as we use it; no member is assumed to be there or to have the right type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.chat.loose_json import count_at
from proxy.upstream import JsonReply
from strategies.core.effects import Answer, Failure


class Completion(NamedTuple):
    """The answers of one call, at least one of them readable.

    `tokens` are those of the whole call; each answer carries the same number.
    """

    answers: tuple[Answer | Failure, ...]
    tokens: int


def read_completion(reply: JsonReply) -> Completion | Failure:
    """The completion in a reply, or the failure that it amounts to."""
    if reply.status == 429:
        return Failure("rate-limited")
    if reply.status // 100 != 2:
        return Failure("http-error")
    try:
        body = json.loads(reply.body)
        choices = list(body["choices"])
        tokens = _tokens(body.get("usage"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Failure("unreadable")
    answers = tuple(_answer(choice, tokens) for choice in choices)
    if not any(isinstance(each, Answer) for each in answers):
        return Failure("unreadable")
    return Completion(answers, tokens)


def _answer(choice: Any, tokens: int) -> Answer | Failure:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return Failure("unreadable")
    return Answer(
        text=_text(message.get("content")),
        finish_reason=str(choice.get("finish_reason")),
        tokens=tokens,
        called_tools=bool(message.get("tool_calls") or message.get("function_call")),
    )


def _text(content: object) -> str:
    """The text of a message's content, its text parts joined; "" where there is none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [each.get("text") for each in parts if isinstance(each, Mapping) and each.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _tokens(usage: Any) -> int:
    """All tokens of a call, as the server reports them; 0 where it does not."""
    return count_at(usage, "total_tokens") or count_at(usage, "prompt_tokens") + count_at(usage, "completion_tokens")
