"""Messages: one element of the client's list, its role, tokens, calls and text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from strategies.core.digest import call_fields, message_digest
from strategies.core.parsing import loads

SYSTEM_ROLES = ("system", "developer")
"""Values of the `role` member of messages outside the chain."""
RESULT_ROLES = ("tool", "function")
"""Values of the `role` member of messages that answer a call."""


class TokenCounter(Protocol):
    """Counts tokens with one model's tokenizer."""

    def text(self, text: str) -> int:
        """Tokens of a plain text."""
        ...

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of a chat message with its framing."""
        ...


class Role(Enum):
    """The part that a message plays in the conversation; not always what its `role` member says."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(NamedTuple):
    """A tool call in an assistant message; `id` is "" for the old `function_call`."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: the bytes that it came in, and what was read from them."""

    data: bytes
    """The JSON text as it came in; empty for a message of which only the digest is stored."""
    role: Role
    """The part that the message plays in the conversation."""
    role_member: str
    """The value of the `role` member, "" if that is no string."""
    digest: bytes
    """The digest by which the chain knows the message (`strategies.core.digest`); empty for one of our own."""
    tokens: int
    """Tokens of the message with its framing."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls that the message makes."""
    call_id: str = ""
    """The id of the call that the message answers, or ""."""
    is_result: bool = False
    """Whether the `role` member says that it is a tool result; False for a tool's output in a user message."""
    parsed: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    """The parsed JSON, or None: messages cached for later requests go without it (`lean`), and `body` parses again."""

    @property
    def has_text(self) -> bool:
        """Whether the text is stored. A message of which only the digest is left cannot be shown in any view."""
        return bool(self.data)

    @property
    def raw(self) -> str:
        """The JSON text."""
        return self.data.decode("utf-8", "surrogatepass")

    @property
    def body(self) -> Mapping[str, object]:
        """The parsed JSON."""
        if self.parsed is not None:
            return self.parsed
        body: Mapping[str, object] = loads(self.raw)
        return body

    @property
    def text(self) -> str:
        """The text of the content; parts that are not text appear as their type in brackets."""
        return content_text(self.body.get("content"))

    def lean(self) -> Message:
        """The same message without its parsed JSON."""
        parts = (
            self.data,
            self.role,
            self.role_member,
            self.digest,
            self.tokens,
            self.calls,
            self.call_id,
            self.is_result,
        )
        return Message(*parts)


class Reader:
    """Builds messages. `tool_output` are patterns that recognise a tool's output in a user message."""

    def __init__(self, tool_output: Sequence[re.Pattern[str]] = ()) -> None:
        self._tool_output = tuple(tool_output)

    def read(self, raw: str, body: Mapping[str, object], tokens: int, digest: bytes | None = None) -> Message:
        """A message from its JSON text, the parsed JSON, its tokens, and its digest if already computed."""
        return self.read_bytes(raw.encode("utf-8", "surrogatepass"), body, tokens, digest)

    def read_bytes(self, data: bytes, body: Mapping[str, object], tokens: int, digest: bytes | None = None) -> Message:
        """The same, from the bytes of the JSON text."""
        calls = _calls(body) if body.get("role") == "assistant" else ()
        return _message(data, body, self.role(body), digest or message_digest(body), tokens, calls)

    def role(self, body: Mapping[str, object]) -> Role:
        """The role of a message in the conversation; a message with an unknown role counts as the user's."""
        match body.get("role"):
            case "system" | "developer":
                return Role.SYSTEM
            case "assistant":
                return Role.ASSISTANT
            case "tool" | "function":
                return Role.TOOL
        return Role.TOOL if self._is_tool_output(body) else Role.USER

    def _is_tool_output(self, body: Mapping[str, object]) -> bool:
        if not self._tool_output:
            return False
        text = content_text(body.get("content"))
        return any(pattern.search(text) for pattern in self._tool_output)


def _message(
    data: bytes, body: Mapping[str, object], role: Role, digest: bytes, tokens: int, calls: tuple[ToolCall, ...]
) -> Message:
    written, answers = body.get("role"), body.get("tool_call_id")
    return Message(
        data,
        role,
        written if isinstance(written, str) else "",
        digest,
        tokens,
        calls,
        answers if isinstance(answers, str) else "",
        written in RESULT_ROLES,
        body,
    )


def unknown(digest: bytes, role: Role) -> Message:
    """A placeholder in the chain for a message of which only the digest is stored."""
    return Message(b"", role, "", digest, 0, parsed={})


def literal(body: Mapping[str, object], counter: TokenCounter, role: Role, raw: str | None = None) -> Message:
    """A message of our own, with its tokens counted. It belongs to no chain and has no digest.

    `raw` is its JSON text, if that already exists.
    """
    text = dump(body) if raw is None else raw
    return _message(text.encode("utf-8", "surrogatepass"), body, role, b"", counter.message(body), _calls(body))


def _calls(body: Mapping[str, object]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(*fields) for fields in call_fields(body))


def dump(body: Mapping[str, object]) -> str:
    """The JSON text of a message of our own. Lone surrogates stay escaped, so that the text can always be encoded."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=True, separators=(",", ":"))
    return text


def content_text(content: object) -> str:
    """The text of a message's content; parts that are not text appear as their type in brackets, as `[image_url]`."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"
