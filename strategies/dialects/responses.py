"""The dialect of OpenAI's Responses API: a list of items, of which messages are one type.

What a model produces in one step is several items: reasoning, words, calls, what server tools did. They belong together
with the outputs that answer the calls: reasoning without the item that it led to is refused, and so is a call without
its output. Some items stand outside of the history, as system messages do: tools that became known on the way, and
settings that are valid until they are replaced. Items of unknown types are kept as they are or go with their step, and
so are items that only refer to what the server keeps.

Ids of items, their status and what reasoning holds differ between a reply and the copy that a client sends back, so
they are no part of a digest. Only the id that a call and its output share is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from strategies.core.digest import canonical_arguments, canonical_json
from strategies.core.messages import Dialect, Form, Reading, Role, ToolCall, Value

ACKNOWLEDGED = "Understood."
"""The text of an assistant message that would be empty, which none may be."""
REASONING = "reasoning"
PINNED = (
    *("additional_tools", "configuration_update", "mcp_list_tools", "tool_search_call", "tool_search_output"),
    "compaction",
)
"""Types of items that stay whatever becomes of their neighbours: they hold tools, settings, or an opaque history."""
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
_MEDIA = ("input_image", "input_file", "input_audio")
_UNSEEN = ("id", "status", "annotations", "logprobs", "phase")


class Responses:
    """Reads and writes items of the Responses API."""

    name = "responses"
    system_roles: Sequence[str] = ("system", "developer")
    has_steps = True
    systems_follow_users = False
    binds_reasoning = False
    drops_reasoning = True

    # -- reading

    def read(self, value: Value) -> Reading:
        """What a model or a server tool made is the assistant's, also where nothing is known of its type."""
        kind = _kind(value)
        if kind == "message":
            written = _word(value.get("role"))
            return Reading(_ROLES.get(written, Role.USER), written)
        if kind in PINNED:
            return Reading(Role.SYSTEM, "developer")
        if kind in _ANSWERS:
            return Reading(Role.TOOL, "tool", (), (_key(value),) if _key(value) else (), True)
        if kind.endswith("_output"):
            return Reading(Role.TOOL, "tool")
        return Reading(Role.ASSISTANT, "assistant", (_call(value),) if kind in _OUTPUTS else ())

    def text(self, value: Value) -> str:
        """Texts and outputs; what is neither appears as its type in brackets, calls and reasoning not at all."""
        kind = _kind(value)
        if kind == "message" or kind in _ANSWERS:
            return "\n".join(_texts(value.get(_member(value))))
        return "" if kind == REASONING or kind in _OUTPUTS else f"[{kind}]"

    def media(self, value: Value) -> int:
        """The parts of a message or an output that are pictures or files."""
        return sum(_word(part.get("type")) in _MEDIA for part in _listed(value.get(_member(value))))

    def digest_fields(self, value: Value) -> Iterable[str]:
        """What an item says, without its id and what SDKs add."""
        kind = _kind(value)
        yield kind
        if kind == "message":
            yield _word(value.get("role"))
            yield from _content_fields(value.get("content"))
        elif kind == "function_call":
            yield from (_key(value), _word(value.get("name")), canonical_arguments(_word(value.get("arguments"))))
        elif kind in _ANSWERS:
            yield _key(value)
            yield from _content_fields(value.get("output"))
        elif kind == "item_reference":
            yield _word(value.get("id"))
        elif kind != REASONING:
            yield canonical_json(_seen(value))

    # -- writing

    def user(self, text: str) -> Value:
        """A user message with one text."""
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def assistant(self, text: str, name: str = "") -> Value:
        """An assistant message, or with a name a user message: there are no names."""
        if name:
            return self.user(text)
        content = [{"type": "output_text", "text": text or ACKNOWLEDGED}]
        return {"type": "message", "role": "assistant", "content": content}

    def empty(self, written: str) -> Value:
        """A message of a role as it is written, without content."""
        return {"type": "message", "role": written, "content": ""}

    # -- rewriting

    def texts(self, value: Value) -> Sequence[str]:
        """One text: an item answers one call at most."""
        return [self.text(value)]

    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        """A message or a tool's output with the text in place of its content; other items stay as they are."""
        if texts[0] == self.text(value):
            return value
        if _kind(value) in _TEXTUAL:
            return {**value, "output": texts[0]}
        return {**value, "content": texts[0]} if _kind(value) == "message" else value

    def is_plain(self, value: Value) -> bool:
        """Whether the item is a message or a tool's output, and has one text."""
        content = value.get(_member(value))
        known = _kind(value) == "message" or _kind(value) in _TEXTUAL
        return known and (isinstance(content, str) or (len(_listed(content)) == 1 and _has_text(_listed(content)[0])))

    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """The call of a function with other arguments; calls of other kinds are never rewritten."""
        arguments = rewrite(_call(value)) if _kind(value) == "function_call" else None
        return value if arguments is None else {**value, "arguments": json.dumps(arguments, ensure_ascii=False)}

    def unbound(self, value: Value) -> Value:
        """The same object: a server leaves out by itself what it cannot use any more."""
        return value

    # -- forms

    def fitted(self, value: Value, form: Form) -> Value | None:
        """All forms accept what is written here; only a message without content is left out."""
        return None if _kind(value) == "message" and not value.get("content") else value

    def as_user(self, value: Value) -> Value:
        """The text as the user's message."""
        return self.user(self.text(value))

    def merged(self, first: Value, second: Value) -> Value:
        """Two messages of one role as one, with the parts of both."""
        return {**first, **second, "content": [*_content_parts(first), *_content_parts(second)]}


RESPONSES: Dialect = Responses()


def _kind(value: Value) -> str:
    """The type of an item; a message may go without one."""
    return _word(value.get("type")) or "message"


def _call(value: Value) -> ToolCall:
    given = next((value[member] for member in _GIVEN if member in value), None)
    text = given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)
    return ToolCall(_key(value), _word(value.get("name")) or _kind(value), text)


def _key(value: Value) -> str:
    """By what a call and its output know each other; a local shell's output has it as its own id."""
    match _kind(value):
        case "mcp_approval_request":
            return _word(value.get("id"))
        case "local_shell_call_output":
            return _word(value.get("call_id") or value.get("id"))
        case "mcp_approval_response":
            return _word(value.get("approval_request_id"))
    return _word(value.get("call_id"))


def _member(value: Value) -> str:
    return "output" if _kind(value) in _ANSWERS else "content"


def _listed(content: object) -> Sequence[Value]:
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []


def _content_parts(value: Value) -> Sequence[Value]:
    content = value.get("content")
    kind = "output_text" if value.get("role") == "assistant" else "input_text"
    return [{"type": kind, "text": content}] if isinstance(content, str) and content else _listed(content)


def _has_text(part: Value) -> bool:
    return isinstance(part.get("text"), str)


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in _listed(content):
        said = part.get("text", part.get("refusal"))
        yield said if isinstance(said, str) else f"[{part.get('type', 'part')}]"


def _content_fields(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield from ("text", content) if content else ()
    for part in _listed(content):
        yield from ("text", str(part["text"])) if _has_text(part) else ("part", canonical_json(_seen(part)))


def _seen(value: Value) -> object:
    return {key: member for key, member in value.items() if key not in _UNSEEN and member not in (None, [])}


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
