"""One reply of the upstream: its message, the memory calls in it that the client must not see, its usage. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.searching.tool import NAME
from proxy.values import count_at
from strategies.core.messages import dump

COMPLETE_FINISHES = (None, "stop", "tool_calls", "function_call")
"""Finish reasons after which calls are complete; some servers give none, or the wrong one."""
NO_ANSWER = "(The model gave no answer.)"
"""What a client gets instead of an empty message, which many servers refuse when it is sent back to them."""
_CALL_FINISHES = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """The first choice of a reply: its message, its finish reason, and the usage of the reply."""

    message: Mapping[str, Any]
    finish: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def memory_calls(self) -> list[Mapping[str, Any]]:
        """The calls of the memory tool, which are hidden from the client."""
        return [call for call in calls_of(self.message) if is_hidden(call)]

    @property
    def has_client_calls(self) -> bool:
        """Whether the client's own tools are called."""
        return bool(self.message.get("function_call")) or len(self.memory_calls) < len(calls_of(self.message))

    @property
    def calls_memory(self) -> bool:
        """Whether the memory tool is called, and the reply did not end within a call."""
        return bool(self.memory_calls) and self.finish in COMPLETE_FINISHES

    @property
    def text(self) -> str:
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def is_hidden(call: object) -> bool:
    """Whether a call is one of the memory tool."""
    function = call.get("function") if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and function.get("name") == NAME


def finish_for_client(finish: object, *, has_calls: bool) -> object:
    """The finish reason without the hidden calls; `has_calls` says that the client still sees other calls."""
    return "stop" if finish in _CALL_FINISHES and not has_calls else finish


def hidden_message(choice: FirstChoice) -> dict[str, Any]:
    """The assistant message of a hidden round: as the model gave it, or only its memory calls if it has others too.

    Members that are null are left out, since servers that send them do not accept them back.
    """
    if choice.has_client_calls:
        return {"role": "assistant", "content": None, "tool_calls": choice.memory_calls}
    kept = {key: value for key, value in choice.message.items() if value is not None}
    return {"role": "assistant", "content": None, **kept}


def usage_for_client(usage: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage of the last reply with the completion tokens of the `earlier` ones added; the prompt is the last's."""
    total = dict(usage)
    for each in earlier:
        total["completion_tokens"] = count_at(total, "completion_tokens") + count_at(each, "completion_tokens")
        details, before = total.get("completion_tokens_details"), each.get("completion_tokens_details")
        if isinstance(details, Mapping) and isinstance(before, Mapping):
            added = {key: count_at(details, key) + count_at(before, key) for key in details if count_at(before, key)}
            total["completion_tokens_details"] = {**details, **added}
    if "total_tokens" in total:
        total["total_tokens"] = count_at(total, "prompt_tokens") + count_at(total, "completion_tokens")
    return total


# -- a reply in one piece ----------------------------------------------------------------------------------------


def first_choice_in(data: bytes) -> FirstChoice | None:
    """The first choice of a JSON reply; None where the reply is no completion."""
    try:
        body = json.loads(data)
        choice = body["choices"][0]
        usage = body.get("usage")
        return FirstChoice(
            dict(choice["message"]), choice.get("finish_reason"), usage if isinstance(usage, dict) else None
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def reply_for_client(data: bytes, earlier: list[FirstChoice]) -> bytes:
    """The JSON reply as the client gets it: without hidden calls, with the text and the usage of `earlier` replies.

    Its bytes are unchanged where none of that applies.
    """
    body = json.loads(data)
    hides = [_remove_memory_calls(choice) for choice in body["choices"]]
    if not (earlier or any(hides)):
        return data
    text = "".join(each.text for each in earlier)
    message = body["choices"][0]["message"]
    if text:
        message["content"] = _with_text_before(text, message.get("content"))
    usages = [each.usage for each in earlier if each.usage]
    if isinstance(body.get("usage"), dict) and usages:
        body["usage"] = usage_for_client(body["usage"], usages)
    return dump(body).encode()


def _with_text_before(text: str, content: object) -> object:
    """A message's content with the text of earlier replies before it."""
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return text + content if isinstance(content, str) and content != NO_ANSWER else text


def _remove_memory_calls(choice: dict[str, Any]) -> bool:
    """Takes the hidden calls out of a choice, in place. Returns whether there were any."""
    message = choice.get("message") or {}
    calls = calls_of(message)
    client_calls = [call for call in calls if not is_hidden(call)]
    if len(client_calls) == len(calls):
        return False
    if client_calls:
        message["tool_calls"] = client_calls
    else:
        del message["tool_calls"]
        message["content"] = message.get("content") or NO_ANSWER
    choice["finish_reason"] = finish_for_client(choice.get("finish_reason"), has_calls=bool(client_calls))
    return True
