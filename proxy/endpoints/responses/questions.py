"""The proxy's own calls in the form of the Responses API: the body that asks, and the answer in the reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.endpoints.endpoint import Question
from proxy.endpoints.responses.replies import output_of, text_of
from proxy.values import word_at
from strategies.core.effects import Answer, Failure
from strategies.dialects.responses import RESPONSES

_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")
_FINISHES = {"completed": "stop", "max_output_tokens": "length"}


def body_of(question: Question, limit: str) -> bytes:
    """The body of a request, with the bound on the answer's length under the name `limit`; nothing is to be kept."""
    members = {"model": json.dumps(question.model), limit: str(question.max_tokens), "store": "false"}
    members |= question.members
    if question.view is None and question.system:
        members["instructions"] = json.dumps(question.system)
    if not _NO_TOOLS.fullmatch(members.get("tools", "null")):
        members["tool_choice"] = '"none"'
    if question.temperature is not None:
        members["temperature"] = json.dumps(question.temperature)
    members["input"] = _items(question)
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def _items(question: Question) -> str:
    # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
    asked = json.dumps(RESPONSES.user(question.user))
    if question.view is None:
        return f"[{asked}]"
    head = question.view.rstrip().removesuffix("]").rstrip()
    return f"{head}{'' if head.endswith('[') else ','}{asked}]"


def answers_in(document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
    """The only answer in a response; None if the document is none. It is said to have cost `tokens`."""
    if not isinstance(document.get("output"), list):
        return None
    items = output_of(document)
    reason = word_at(document.get("incomplete_details"), "reason") or word_at(document, "status")
    called = any(str(item.get("type")).endswith("_call") for item in items)
    return [Answer(text_of(items), _FINISHES.get(reason, reason), tokens, called)]
