"""The dialect of OpenAI's chat completions: `{"role": …, "content": …}`, calls in `tool_calls`, a message per result.

The digest of a message covers its role, name, content and calls, and the id of the call that it answers. An assistant's
name is left out: agent SDKs add it only when they send a reply back in a later turn. `null`, `""` and `[]` are the same
content; a list of one text part equals that text. `function_call` is a call without an id, and the role `function` is a
result without one.

Gateways carry another protocol's reasoning in members of their own. Signed parts are kept or left out (`unbound`);
others are always kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

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
from strategies.core.parsing import objects_in

SYSTEM_ROLES = Dialect.system_roles
RESULT_ROLES = ("tool", "function")  # the roles of messages that answer a call
CALLING = "(tool call)"
"""The content of a message that the proxy wrote and that only calls tools, if an empty content is refused."""
_REASONING = ("thinking_blocks", "reasoning_details", "content")
"""The members whose parts may be signed reasoning: LiteLLM's, OpenRouter's, and a content of parts."""
_UNSEEN_PART_MEMBERS = frozenset({"cache_control", "annotations", "logprobs"})
_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


class Chat(Dialect):
    """Reads and writes chat messages."""

    name = "chat"
    has_steps = False

    def read(self, value: Value) -> Reading:
        """A message with an unknown role counts as the user's."""
        written, answers = value.get("role"), value.get("tool_call_id")
        role = written if isinstance(written, str) else ""
        return Reading(
            _ROLES.get(role, Role.USER),
            role,
            tuple([ToolCall(*fields) for fields in call_fields(value)]) if role == "assistant" else (),
            (answers,) if isinstance(answers, str) and answers else (),
            role in RESULT_ROLES,
            role == "assistant" and any(map(_is_signed, _reasoning_parts(value))),
        )

    def text(self, value: Value) -> str:
        return content_text(value.get("content"))

    def pictures(self, value: Value) -> int:
        content = value.get("content")
        return 0 if isinstance(content, str) else sum([part.get("type") == "image_url" for part in objects_in(content)])

    def digest_fields(self, value: Value) -> Iterable[str]:
        role = value.get("role")
        calls = [("call", call_id, name, canonical_arguments(text)) for call_id, name, text in call_fields(value)]
        return (
            "tool" if role == "function" else str(role),
            "" if role == "assistant" else _canonical(value.get("name")),
            *_content_fields(value.get("content")),
            *chain.from_iterable(calls),
            _canonical(value.get("tool_call_id")),
        )

    def user(self, text: str) -> Value:
        return {"role": "user", "content": text}

    def assistant(self, text: str, name: str = "") -> Value:
        return {"role": "assistant", "name": name, "content": text} if name else {"role": "assistant", "content": text}

    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        return {**value, "content": texts[0]}

    def is_plain(self, value: Value) -> bool:
        return isinstance(value.get("content"), str)

    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """The input of a custom tool is free text and never rewritten."""
        written = value.get("tool_calls")
        if not isinstance(written, list):
            return value
        calls = [_with_arguments(call, rewrite) if isinstance(call, Mapping) else call for call in written]
        return value if calls == written else {**value, "tool_calls": calls}

    def unbound(self, value: Value) -> Value:
        """Without what is signed; a message that has nothing else becomes "Understood."."""
        left = dict(value)
        for name in _REASONING:
            parts = value.get(name)
            rest = [part for part in parts if not _is_signed(part)] if isinstance(parts, list) else parts
            if rest != parts and not rest:
                del left[name]
            elif rest != parts:
                left[name] = rest
        if left == value:
            return value
        return left if left.get("content") or call_fields(left) else {**left, "content": ACKNOWLEDGED}

    def fitted(self, value: Value, form: Form) -> Value | None:
        """Removes a name and fills in a content, if the form requires that."""
        if value.get("role") != "assistant":
            return value
        if not form.assistant_name and "name" in value:
            value = {key: member for key, member in value.items() if key != "name"}
        if form.empty_assistant or value.get("content"):
            return value
        return {**value, "content": CALLING} if value.get("tool_calls") else None

    def merged(self, first: Value, second: Value) -> Value:
        """Joins the contents. Of the other members, those of the second message win."""
        return {**first, **second, "content": _merged(first.get("content"), second.get("content"))}


CHAT = Chat()


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
        fields.append(("", _canonical(old_style.get("name")), _canonical(old_style.get("arguments"))))
    return fields


def _reasoning_parts(value: Value) -> Iterable[Value]:
    return chain.from_iterable(objects_in(value.get(name)) for name in _REASONING)


def _is_signed(part: object) -> bool:
    """Whether a part is reasoning that Anthropic has signed or sealed."""
    if not isinstance(part, Mapping):
        return False
    is_sealed = part.get("type") == "reasoning.encrypted" and str(part.get("format")).startswith("anthropic")
    return bool(part.get("signature")) or is_sealed or part.get("type") == "redacted_thinking"


def _call(call: Value) -> tuple[str, str, str]:
    function = call.get("function")
    if isinstance(function, Mapping):
        return _canonical(call.get("id")), _canonical(function.get("name")), _canonical(function.get("arguments"))
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        return _canonical(call.get("id")), _canonical(custom.get("name")), _canonical(custom.get("input"))
    return _canonical(call.get("id")), "", ""


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
    only = content[0] if len(content) == 1 and isinstance(content[0], Mapping) else {}
    if only.get("type") == "text" and isinstance(text := only.get("text"), str):
        return ("text", text) if text else ("empty",)
    return "parts", canonical_json([_seen_members(part) for part in content])


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
    """Both contents as one text, or as parts if either has parts."""
    contents = [content for content in (first, second) if content]
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts) if texts else second
    return [part for content in contents for part in _parts(content)]


def _parts(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [content]


def _canonical(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical_json(value)
