"""Answers: what a chat completion says, as far as we read it. Nothing in it is believed to have a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.request.loose_json import count_at
from proxy.upstream import JsonReply
from strategies.core.effects import Answer, Failure


class Completion(NamedTuple):
    """The answers of one call, at least one of them readable; `tokens`, also each one's, are of all together."""

    answers: tuple[Answer | Failure, ...]
    tokens: int


def read(reply: JsonReply) -> Completion | Failure:
    """A completion, or why there is none."""
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
    """A content's text; of one in parts that of the text parts, as one. "" where there is none."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [each.get("text") for each in parts if isinstance(each, Mapping) and each.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _tokens(usage: Any) -> int:
    """Tokens of a call in all, as the server told; 0 where it did not."""
    return count_at(usage, "total_tokens") or count_at(usage, "prompt_tokens") + count_at(usage, "completion_tokens")
