"""The dialect of OpenAI's chat completions: `{"role": …, "content": …}`, calls in `tool_calls`, a message a result.

Of a message the digest covers the role, the name, the content, the calls and the id of the call that it answers. An
assistant's name is left out: agent SDKs add it only when they send a reply back in a later turn. `null`, `""` and `[]`
are the same content; a list of one text part is that text. `function_call` is a call without an id, the role `function`
a result without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from strategies.core.digest import canonical_arguments, canonical_json
from strategies.core.messages import Dialect, Form, Reading, Role, ToolCall, Value

SYSTEM_ROLES = ("system", "developer")
"""Values of the `role` member of messages outside the chain."""
RESULT_ROLES = ("tool", "function")
"""Values of the `role` member of messages that answer a call."""
CALLING = "(tool call)"
"""The content of a message that the proxy wrote and that only calls tools, where an empty content is refused."""

_UNSEEN_PART_MEMBERS = frozenset({"cache_control", "annotations", "logprobs"})
_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


class Chat:
    """Reads and writes chat messages."""

    name = "chat"
    system_roles: Sequence[str] = SYSTEM_ROLES
    has_steps = False
    systems_follow_users = False
    binds_reasoning = False
    drops_reasoning = False

    # -- reading

    def read(self, value: Value) -> Reading:
        """A message with an unknown role counts as the user's."""
        written, answers = value.get("role"), value.get("tool_call_id")
        known = written if isinstance(written, str) else ""
        return Reading(
            _ROLES.get(known, Role.USER),
            known,
            tuple([ToolCall(*fields) for fields in call_fields(value)]) if known == "assistant" else (),
            (answers,) if isinstance(answers, str) and answers else (),
            known in RESULT_ROLES,
        )

    def text(self, value: Value) -> str:
        """The text of the content; parts that are not text appear as their type in brackets, as `[image_url]`."""
        return content_text(value.get("content"))

    def media(self, value: Value) -> int:
        """The parts of the content that have no text."""
        content = value.get("content")
        parts = content if isinstance(content, list) else []
        return sum(isinstance(part, dict) and not isinstance(part.get("text"), str) for part in parts)

    def digest_fields(self, value: Value) -> Iterable[str]:
        """The fields of the closed list above."""
        role = value.get("role")
        calls = [("call", call_id, name, canonical_arguments(text)) for call_id, name, text in call_fields(value)]
        return (
            "tool" if role == "function" else str(role),
            "" if role == "assistant" else _word(value.get("name")),
            *_content_fields(value.get("content")),
            *chain.from_iterable(calls),
            _word(value.get("tool_call_id")),
        )

    # -- writing

    def user(self, text: str) -> Value:
        """A message of the user's role."""
        return {"role": "user", "content": text}

    def assistant(self, text: str, name: str = "") -> Value:
        """A message of the assistant's role, with a name where one is given."""
        return {"role": "assistant", "name": name, "content": text} if name else {"role": "assistant", "content": text}

    def empty(self, written: str) -> Value:
        """A message of a role as it is written, without content."""
        return {"role": written, "content": ""}

    # -- rewriting

    def texts(self, value: Value) -> Sequence[str]:
        """One text, the content's: a message answers one call at most."""
        return [content_text(value.get("content"))]

    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        """The message with the text as its content."""
        return {**value, "content": texts[0]}

    def is_plain(self, value: Value) -> bool:
        """Whether the content is a string, and has no parts."""
        return isinstance(value.get("content"), str)

    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """The calls of functions with other arguments; the free text of a custom tool is never rewritten."""
        written = value.get("tool_calls")
        if not isinstance(written, list):
            return value
        calls = [_with_arguments(call, rewrite) if isinstance(call, Mapping) else call for call in written]
        return value if calls == written else {**value, "tool_calls": calls}

    def unbound(self, value: Value) -> Value:
        """The same object: what a message reasoned is not bound to anything."""
        return value

    # -- forms

    def fitted(self, value: Value, form: Form) -> Value | None:
        """Without a name, and with a content, where the form asks for that."""
        if value.get("role") != "assistant":
            return value
        if not form.assistant_name and "name" in value:
            value = {key: member for key, member in value.items() if key != "name"}
        if form.empty_assistant or value.get("content"):
            return value
        return {**value, "content": CALLING} if value.get("tool_calls") else None

    def as_user(self, value: Value) -> Value:
        """The content as the user's message."""
        return {"role": "user", "content": value.get("content")}

    def merged(self, first: Value, second: Value) -> Value:
        """Of members other than the content, the second message's win."""
        return {**first, **second, "content": _merged(first.get("content"), second.get("content"))}


CHAT: Dialect = Chat()


def content_text(content: object) -> str:
    """The text of a message's content; parts that are not text appear as their type in brackets, as `[image_url]`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_part_text(part) for part in content)


def call_fields(value: Value) -> list[tuple[str, str, str]]:
    """The (id, name, arguments) of each call in a message; a `function_call` has the id ""."""
    calls = value.get("tool_calls")
    fields = [_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, Sequence) else []
    old_style = value.get("function_call")
    if isinstance(old_style, Mapping):
        fields.append(("", _word(old_style.get("name")), _word(old_style.get("arguments"))))
    return fields


def _call(call: Value) -> tuple[str, str, str]:
    function = call.get("function")
    if isinstance(function, Mapping):
        return _word(call.get("id")), _word(function.get("name")), _word(function.get("arguments"))
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        return _word(call.get("id")), _word(custom.get("name")), _word(custom.get("input"))
    return _word(call.get("id")), "", ""


def _with_arguments(call: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
    function = call.get("function")
    if not isinstance(function, Mapping) or (arguments := rewrite(ToolCall(*_call(call)))) is None:
        return call
    return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def _content_fields(content: object) -> tuple[str, ...]:
    if content is None or content in ("", []):
        return ("empty",)
    if isinstance(content, str):
        return "text", content
    if not isinstance(content, list):
        return "other", canonical_json(content)
    if len(content) == 1 and (text := _only_text(content[0])) is not None:
        return ("text", text) if text else ("empty",)
    return "parts", canonical_json([_seen_members(part) for part in content])


def _only_text(part: object) -> str | None:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def _seen_members(part: object) -> object:
    if not isinstance(part, Mapping):
        return part
    return {key: value for key, value in part.items() if key not in _UNSEEN_PART_MEMBERS}


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _merged(first: object, second: object) -> object:
    """Both contents as one text, or as parts where either has parts."""
    contents = [content for content in (first, second) if content]
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts) if texts else second
    return [part for content in contents for part in _parts(content)]


def _parts(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [content]


def _word(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical_json(value)
