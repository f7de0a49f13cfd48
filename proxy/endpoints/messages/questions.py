"""The proxy's own calls in the form of the Messages API: the body that asks, and the answer in the reply."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from proxy.endpoints.endpoint import Question
from proxy.endpoints.messages.replies import blocks_of, text_of
from strategies.core.effects import Answer, Failure
from strategies.core.parsing import loads
from strategies.core.shaping import BRIDGE
from strategies.dialects.messages import MESSAGES

_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")
_FINISHES = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


def body_of(question: Question, limit: str) -> bytes:
    """The body of a request, with the bound on the answer's length under the name `limit`.

    Members of a view that say nothing are left out: this server refuses `"system": null`.
    """
    members = {"model": json.dumps(question.model), limit: str(question.max_tokens)}
    members |= {name: value for name, value in question.members.items() if value.strip() != "null"}
    if question.view is None and question.system:
        members["system"] = json.dumps(question.system)
    if not _NO_TOOLS.fullmatch(members.get("tools", "null")):
        members["tool_choice"] = '{"type":"none"}'
    if question.temperature is not None:
        members["temperature"] = json.dumps(question.temperature)
    members["messages"] = _messages(question)
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


def _messages(question: Question) -> str:
    if question.view is None:
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        return json.dumps([{"role": "user", "content": question.user}])
    head = question.view.rstrip().removesuffix("]").rstrip()
    bridged = question.alternates and _last_role(question.view) == "user"
    added = [*([MESSAGES.assistant(BRIDGE)] if bridged else ()), MESSAGES.user(question.user)]
    between = "" if head.endswith("[") else ","
    return f"{head}{between}{','.join(json.dumps(message) for message in added)}]"


def _last_role(view: str) -> str:
    messages = loads(view)
    return str(messages[-1].get("role")) if messages else ""


def answers_in(document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
    """The only answer in a message; None if the document is none. It is said to have cost `tokens`."""
    if not isinstance(document.get("content"), list):
        return None
    reason = str(document.get("stop_reason"))
    called = any(block.get("type") == "tool_use" for block in blocks_of(document))
    return [Answer(text_of(document), _FINISHES.get(reason, reason), tokens, called)]
