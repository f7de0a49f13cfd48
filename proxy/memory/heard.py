"""What one reply of an upstream says: its message, and which of its calls are hidden from the client. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.memory.tool import NAME
from proxy.request.loose_json import count_at
from strategies.core.transcript import dump

GOES_ON_AFTER = (None, "stop", "tool_calls", "function_call")
"""Reasons to finish after which calls are whole; some servers name none, or the wrong one."""
NO_ANSWER = "(The model gave no answer.)"
"""What a client gets in place of nothing: many servers refuse an empty message when it is sent back to them."""
_CALLED = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class Heard:
    """The first choice of a reply that has come whole: its message, why it finished, and the usage that came along."""

    message: Mapping[str, Any]
    finish: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def hidden(self) -> list[Mapping[str, Any]]:
        """The calls of the memory tool."""
        return [call for call in calls_of(self.message) if is_hidden(call)]

    @property
    def has_others(self) -> bool:
        """Whether the client's own tools are called too."""
        return bool(self.message.get("function_call")) or len(self.hidden) < len(calls_of(self.message))

    @property
    def searches(self) -> bool:
        """Whether the memory tool is called, and all its calls came whole."""
        return bool(self.hidden) and self.finish in GOES_ON_AFTER

    @property
    def text(self) -> str:
        """The text of the message."""
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """The tool calls of a message."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def is_hidden(call: object) -> bool:
    """Whether a call is one of the memory tool."""
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and function.get("name") == NAME


def finish_without(finish: object, *, left: bool) -> object:
    """Why a choice finished for the client, who sees none of its hidden calls; `left` says that others are left."""
    return "stop" if finish in _CALLED and not left else finish


def hidden_round(heard: Heard) -> dict[str, Any]:
    """The assistant's message of a hidden round: as the model gave it, or the memory calls alone beside others.

    Members that are null are left out, as servers that send them do not take them back.
    """
    if heard.has_others:
        return {"role": "assistant", "content": None, "tool_calls": heard.hidden}
    kept = {key: value for key, value in heard.message.items() if value is not None}
    return {"role": "assistant", "content": None, **kept}


def summed(usage: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage of a last reply for the client: its prompt, and all that was completed in `earlier` replies too."""
    told = dict(usage)
    for each in earlier:
        told["completion_tokens"] = count_at(told, "completion_tokens") + count_at(each, "completion_tokens")
        details, before = told.get("completion_tokens_details"), each.get("completion_tokens_details")
        if isinstance(details, Mapping) and isinstance(before, Mapping):
            added = {key: count_at(details, key) + count_at(before, key) for key in details if count_at(before, key)}
            told["completion_tokens_details"] = {**details, **added}
    if "total_tokens" in told:
        told["total_tokens"] = count_at(told, "prompt_tokens") + count_at(told, "completion_tokens")
    return told


# -- a reply in one piece ----------------------------------------------------------------------------------------


def heard_in(data: bytes) -> Heard | None:
    """What the first choice of a JSON reply says; None where it is no completion."""
    try:
        body = json.loads(data)
        choice = body["choices"][0]
        usage = body.get("usage")
        return Heard(dict(choice["message"]), choice.get("finish_reason"), usage if isinstance(usage, dict) else None)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def told(data: bytes, earlier: list[Heard]) -> bytes:
    """The JSON reply as the client gets it: without hidden calls, with what `earlier` replies said and used.

    Where nothing of that is to be done, its bytes are as they were.
    """
    body = json.loads(data)
    hides = [_without_hidden(choice) for choice in body["choices"]]
    if not (earlier or any(hides)):
        return data
    text = "".join(each.text for each in earlier)
    message = body["choices"][0]["message"]
    if text:
        message["content"] = _behind(text, message.get("content"))
    usages = [each.usage for each in earlier if each.usage]
    if isinstance(body.get("usage"), dict) and usages:
        body["usage"] = summed(body["usage"], usages)
    return dump(body).encode()


def _behind(text: str, content: object) -> object:
    """A message's content with the text of earlier replies before it."""
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return text + content if isinstance(content, str) and content != NO_ANSWER else text


def _without_hidden(choice: dict[str, Any]) -> bool:
    """Takes the hidden calls out of a choice; whether there were any."""
    message = choice.get("message") or {}
    calls = calls_of(message)
    left = [call for call in calls if not is_hidden(call)]
    if len(left) == len(calls):
        return False
    if left:
        message["tool_calls"] = left
    else:
        del message["tool_calls"]
        message["content"] = message.get("content") or NO_ANSWER
    choice["finish_reason"] = finish_without(choice.get("finish_reason"), left=bool(left))
    return True
