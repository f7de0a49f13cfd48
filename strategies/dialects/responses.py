"""The dialect of OpenAI's Responses API: a list of items, of which messages are one type.

In one step, a model produces several items: reasoning, words, calls, the work of server tools. They belong together
with the outputs that answer the calls: the server refuses reasoning without the item that it led to, and a call without
its output. Some items are outside the history, like system messages: tools that became known on the way, and settings
that hold until they are replaced. Items of unknown types, and items that only refer to what the server stores, are kept
unchanged or removed with their step.

The ids of items, their status and the content of reasoning differ between a reply and the copy that a client sends
back, so they are not part of a digest. The id that a call and its output share is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from strategies.core.messages import (
    ACKNOWLEDGED,
    Dialect,
    Form,
    Reading,
    Role,
    ToolCall,
    Value,
    canonical_arguments,
    canonical_json,
)
from strategies.core.parsing import objects_in, word

REASONING = "reasoning"
PINNED = (
    *("additional_tools", "configuration_update", "mcp_list_tools", "tool_search_call", "tool_search_output"),
    *("compaction", "compaction_trigger"),
)
"""Types of items outside the history, which always stay: tools, settings, an opaque history, or a signal."""
_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "program": "program_output",
    "mcp_approval_request": "mcp_approval_response",
}
_ANSWERS = frozenset(_OUTPUTS.values())
_TEXTUAL = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output")
_GIVEN = ("arguments", "input", "action", "operation", "code")
_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "assistant": Role.ASSISTANT}
_PICTURES = ("input_image", "computer_screenshot")
_UNSEEN = ("id", "status", "annotations", "logprobs", "phase")


class Responses(Dialect):
    """Reads and writes items of the Responses API."""

    name = "responses"
    drops_reasoning = True

    def read(self, value: Value) -> Reading:
        """Everything that a model or a server tool made is the assistant's, even if its type is unknown."""
        kind = _kind(value)
        if kind == "message":
            written = word(value.get("role"))
            return Reading(_ROLES.get(written, Role.USER), written)
        if kind in PINNED:
            return Reading(Role.SYSTEM, "developer")
        key, caller = tuple(filter(None, [_key(value)])), value.get("caller")
        # A program that made this call, or gets its output, is still running.
        running = tuple(filter(None, [word(caller.get("caller_id"))])) if isinstance(caller, Mapping) else ()
        if kind in _ANSWERS or kind.endswith("_output"):
            answers, is_result = (key, True) if kind in _ANSWERS else ((), False)
            return Reading(Role.TOOL, "tool", (), answers, is_result, opens=running, closes=(*running, *key))
        calls = (_call(value),) if kind in _OUTPUTS else ()
        return Reading(Role.ASSISTANT, "assistant", calls, opens=(*running, *key), closes=running)

    def text(self, value: Value) -> str:
        """Calls and reasoning are left out."""
        kind = _kind(value)
        if kind == "message" or kind in _ANSWERS:
            return "\n".join(_texts(value.get(_member(value))))
        return "" if kind == REASONING or kind in _OUTPUTS else f"[{kind}]"

    def pictures(self, value: Value) -> int:
        content = value.get(_member(value))
        return sum(
            part.get("type") in _PICTURES for part in objects_in([content] if isinstance(content, dict) else content)
        )

    def digest_fields(self, value: Value) -> Iterable[str]:
        kind = _kind(value)
        yield kind
        if kind == "message":
            yield word(value.get("role"))
            yield from _content_fields(value.get("content"))
        elif kind == "function_call":
            yield from (_key(value), word(value.get("name")), canonical_arguments(word(value.get("arguments"))))
        elif kind in _ANSWERS:
            yield _key(value)
            yield from _content_fields(value.get("output"))
        elif kind == "item_reference":
            yield word(value.get("id"))
        elif kind != REASONING:
            yield canonical_json(_seen(value))

    def user(self, text: str) -> Value:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def assistant(self, text: str, name: str = "") -> Value:
        if name:
            return self.user(text)
        content = [{"type": "output_text", "text": text or ACKNOWLEDGED}]
        return {"type": "message", "role": "assistant", "content": content}

    def has_failed(self, value: Value) -> bool:
        return _kind(value) in _ANSWERS and value.get("status") == "failed"

    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        """Items that are neither messages nor outputs of tools stay unchanged."""
        if texts[0] == self.text(value):
            return value
        if _kind(value) in _TEXTUAL:
            return {**value, "output": texts[0]}
        return {**value, "content": texts[0]} if _kind(value) == "message" else value

    def is_plain(self, value: Value) -> bool:
        if not (_kind(value) == "message" or _kind(value) in _TEXTUAL):
            return False
        content = value.get(_member(value))
        parts = objects_in(content)
        return isinstance(content, str) or (len(parts) == 1 and _has_text(parts[0]))

    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """Only calls of functions are rewritten."""
        arguments = rewrite(_call(value)) if _kind(value) == "function_call" else None
        return value if arguments is None else {**value, "arguments": json.dumps(arguments, ensure_ascii=False)}

    def fitted(self, value: Value, form: Form) -> Value | None:
        return None if _kind(value) == "message" and not value.get("content") else value

    def as_user(self, value: Value) -> Value:
        return self.user(self.text(value))

    def merged(self, first: Value, second: Value) -> Value:
        return {**first, **second, "content": [*_content_parts(first), *_content_parts(second)]}


RESPONSES = Responses()


def _kind(value: Value) -> str:
    """The type of an item, which may be missing in a message."""
    return word(value.get("type")) or "message"


def _call(value: Value) -> ToolCall:
    given = next((value[member] for member in _GIVEN if member in value), None)
    text = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
    return ToolCall(_key(value), word(value.get("name")) or _kind(value), text)


def _key(value: Value) -> str:
    """The id that a call and its output share. A local shell's output may have it as its own id."""
    match _kind(value):
        case "mcp_approval_request":
            return word(value.get("id"))
        case "local_shell_call_output":
            return word(value.get("call_id") or value.get("id"))
        case "mcp_approval_response":
            return word(value.get("approval_request_id"))
    return word(value.get("call_id"))


def _member(value: Value) -> str:
    return "output" if _kind(value) in _ANSWERS else "content"


def _content_parts(value: Value) -> Sequence[Value]:
    content = value.get("content")
    kind = "output_text" if value.get("role") == "assistant" else "input_text"
    return [{"type": kind, "text": content}] if isinstance(content, str) and content else objects_in(content)


def _has_text(part: Value) -> bool:
    return isinstance(part.get("text"), str)


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in objects_in(content):
        text = part.get("text", part.get("refusal"))
        yield text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _content_fields(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield from ("text", content) if content else ()
    for part in objects_in(content):
        yield from ("text", str(part["text"])) if _has_text(part) else ("part", canonical_json(_seen(part)))


def _seen(value: Value) -> object:
    return {key: member for key, member in value.items() if key not in _UNSEEN and member not in (None, [])}
