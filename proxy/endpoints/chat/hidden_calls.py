"""Chat: how the memory tool is offered, and one reply with the calls of it that the client must not see. Pure.

Where a request asks for several choices, or says which tool is to be called, the tool is offered all the same, so that
the beginning of the prompt stays the same for the upstream's cache; but a call of it is not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.endpoint import Values
from proxy.endpoints.hidden_calls import FREE_CHOICES, NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, ToolUse
from proxy.endpoints.replies import Items
from proxy.values import count_at, json_or_none
from strategies.core.messages import dump

_CALL_FINISHES = ("tool_calls", "function_call")


@dataclass(frozen=True, slots=True)
class FirstChoice(Said):
    """The first choice of a reply."""

    complete = (None, "stop", "tool_calls", "function_call")
    message: Mapping[str, Any]

    @property
    def memory_calls(self) -> list[Mapping[str, Any]]:
        return [call for call in calls_of(self.message) if is_hidden(call)]

    @property
    def has_client_calls(self) -> bool:
        return bool(self.message.get("function_call")) or len(self.memory_calls) < len(calls_of(self.message))

    @property
    def text(self) -> str:
        content = self.message.get("content")
        return content if isinstance(content, str) else ""

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The message of a hidden round: as the model gave it, or only its memory calls if it has others too.

        Members that are null are left out, since servers that send them do not accept them back.
        """
        calls = [_sendable(call, f"{prefix}_{place}") for place, call in enumerate(self.memory_calls)]
        hidden = [
            HiddenCall(sent["id"], call["function"].get("arguments"))
            for call, sent in zip(self.memory_calls, calls, strict=True)
        ]
        if self.has_client_calls:
            return HiddenRound([{"role": "assistant", "content": None, "tool_calls": calls}], "", hidden)
        kept = {key: value for key, value in self.message.items() if value is not None}
        return HiddenRound([{"role": "assistant", "content": None, **kept, "tool_calls": calls}], self.text, hidden)


def results(found: Sequence[tuple[str, str]]) -> Items:
    """The messages that answer calls, given by their ids, with these texts."""
    return [{"role": "tool", "tool_call_id": id, "content": text} for id, text in found]


def _sendable(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A call in the form that an upstream accepts back: with an id, a type, and arguments that are a JSON object."""
    function, arguments = call["function"], call["function"].get("arguments")
    if not (isinstance(arguments, str) and isinstance(json_or_none(arguments), dict)):
        function = {**function, "arguments": "{}"}
    return {**call, "id": call.get("id") or name, "type": "function", "function": function}


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
        usage = usage if isinstance(usage, dict) else None
        return FirstChoice(dict(choice["message"]), finish=choice.get("finish_reason"), usage=usage)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def reply_for_client(data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
    """The JSON reply as the client gets it, as `JoinReplies` says."""
    body = json.loads(data)
    hides = [_remove_memory_calls(choice) for choice in body["choices"]]
    if not (earlier or any(hides)):
        return data
    text = "".join(each.text for each in earlier) if keeps_text else ""
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


# -- the tool ----------------------------------------------------------------------------------------------------


def tool(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """A tool as JSON text."""
    function = {"name": name, "description": description, "parameters": parameters}
    return dump({"type": "function", "function": function})


def tool_use(values: Values) -> ToolUse | None:
    """What a request says of tools; None if they are in no known form."""
    tools = values.get("tools")
    if not (tools is None or isinstance(tools, list)):
        return None
    runs_calls = values.get("n") in (None, 1) and values.get("tool_choice") in FREE_CHOICES
    # No upstream takes tools together with the old `functions`.
    return ToolUse(frozenset(_names(tools or ())), bool(tools), not values.get("functions"), runs_calls)


def _names(tools: Iterable[Any]) -> Iterator[str]:
    for each in tools:
        kind = each.get("type", "function") if isinstance(each, Mapping) else None
        inner = each.get(kind) if isinstance(kind, str) else None
        if isinstance(inner, Mapping):
            yield str(inner.get("name"))


def tool_members(tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:
    """The members that offer `tools`.

    In the last request the tool stays, for the upstream's cache, with `tool_choice` "none". If the client has tools of
    its own, which the model may still call, the tool is left out instead.
    """
    if not is_last:
        return {"tools": tools}
    return {} if has_client_tools else {"tools": tools, "tool_choice": '"none"'}
