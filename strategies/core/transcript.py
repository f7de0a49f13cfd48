"""The transcript: the message list that a client sent, as the strategies see it.

A message keeps the exact bytes that it came in, so that an unchanged message is never serialized again. System and
developer messages stand outside the chain: agents put the time of day into them, so no digest may depend on them and
no strategy may touch them. A transcript is therefore two sequences: the *chain* of all other messages, and the
*systems*, each with the number of chain messages before it.

Some agents send the output of their tools as user messages. `Reader` recognises these by patterns and gives them the
role `TOOL`, because they answer the assistant and open no turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strategies.core.digest import ROOT, call_fields, chain, message_digest
from strategies.core.parsing import loads

if TYPE_CHECKING:
    from strategies.core.condensation import Overlay
    from strategies.core.form import Form

SYSTEM_ROLES = ("system", "developer")
"""Values of the `role` member of messages outside the chain."""
RESULT_ROLES = ("tool", "function")
"""Values of the `role` member of messages that answer a call."""


class Counter(Protocol):
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


class Call(NamedTuple):
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
    """The digest by which the chain knows the message (`strategies.core.digest`); empty for a message of ours."""
    tokens: int
    """Tokens of the message with its framing."""
    calls: tuple[Call, ...] = ()
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
    data: bytes, body: Mapping[str, object], role: Role, digest: bytes, tokens: int, calls: tuple[Call, ...]
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


@dataclass(frozen=True)
class Transcript:
    """The messages of one request, divided into chain and systems."""

    chain: tuple[Message, ...]
    """All messages but system and developer messages, in order."""
    systems: tuple[tuple[int, Message], ...] = ()
    """The system and developer messages in order, each with the number of chain messages before it."""
    patches: tuple[Overlay, ...] = ()
    """Hidden memory rounds, in order. A view shows those that no head covers."""
    form: Form | None = None
    """What the upstream accepts, by which views are written out; None if it accepts anything."""
    newest_turn: int = 0
    """How many of the last chain messages are the newest turn; 0 where it is not known what the last request had."""

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Transcript:
        """Divides messages into chain and systems. What looks like tool output but answers nothing is the user's."""
        chained: list[Message] = []
        systems: list[tuple[int, Message]] = []
        _sort(messages, chained, systems)
        return cls(tuple(chained), tuple(systems))

    def extended_by(self, messages: Iterable[Message]) -> Transcript:
        """This transcript with more messages at its end; what was computed for this one is not computed again."""
        chained, systems = list(self.chain), list(self.systems)
        _sort(messages, chained, systems)
        longer = replace(self, chain=tuple(chained), systems=tuple(systems))
        rest = Transcript(longer.chain[len(self.chain) :], longer.systems[len(self.systems) :])
        root = self.digests[-1] if self.chain else ROOT
        # Stored where `cached_property` looks for them.
        vars(longer).update(
            digests=[*self.digests, *chain((message.digest for message in rest.chain), root)],
            unknown=[*self.unknown, *(len(self.chain) + i for i in rest.unknown)],
            system_tokens=self.system_tokens + rest.system_tokens,
            tokens=self.tokens + rest.tokens,
        )
        return longer

    def with_leading_systems(self, systems: Sequence[Message]) -> Transcript:
        """This transcript with system messages before all others; what was computed for this one is carried over."""
        if not systems:
            return self
        led = replace(self, systems=(*((0, system) for system in systems), *self.systems))
        more = sum([system.tokens for system in systems])
        vars(led).update(digests=self.digests, unknown=self.unknown)
        vars(led).update(system_tokens=self.system_tokens + more, tokens=self.tokens + more)
        return led

    def with_form(self, form: Form | None) -> Transcript:
        """The same messages for an upstream that accepts this form."""
        return self._with(form=form)

    def with_patches(self, patches: tuple[Overlay, ...]) -> Transcript:
        """The same messages with these hidden memory rounds."""
        return self._with(patches=patches)

    def with_newest_turn(self, length: int) -> Transcript:
        """The same messages, of which the last `length` are the newest turn."""
        other = self._with(newest_turn=length)
        vars(other).pop("question", None)
        return other

    def _with(self, **fields: Any) -> Transcript:
        """The transcript with other fields that leave its messages alone, so all cached values stay valid."""
        other = replace(self, **fields)
        vars(other).update({name: known for name, known in vars(self).items() if name not in vars(other)})
        return other

    @cached_property
    def digests(self) -> list[bytes]:
        """The chain digest after each chain message."""
        return chain(message.digest for message in self.chain)

    @cached_property
    def unknown(self) -> list[int]:
        """The chain indices of the messages of which only the digests are stored."""
        return [i for i, message in enumerate(self.chain) if not message.data]

    @cached_property
    def task(self) -> int | None:
        """The chain index of the first user message, which says what the conversation is about."""
        return next((i for i, message in enumerate(self.chain) if message.role is Role.USER), None)

    @cached_property
    def last_user(self) -> int | None:
        """The chain index of the last user message."""
        return next(iter(self.last_users(1)), None)

    def last_users(self, most: int) -> list[int]:
        """The chain indices of the last user messages, at most `most`, in order."""
        backwards = range(len(self.chain) - 1, -1, -1)
        return list(islice((i for i in backwards if self.chain[i].role is Role.USER), most))[::-1]

    @property
    def opening(self) -> int | None:
        """The chain index at which the newest turn begins: with its question, or what the client put in front of it."""
        return len(self.chain) - self.newest_turn if self.newest_turn else None

    @cached_property
    def question(self) -> range:
        """The chain indices of the last user message and of what the client has put in front of it."""
        last = self.last_user
        return range(0) if last is None else range(last if self.opening is None else min(self.opening, last), last + 1)

    @cached_property
    def system_tokens(self) -> int:
        """Tokens of all system and developer messages."""
        return sum([message.tokens for _, message in self.systems])

    @cached_property
    def tokens(self) -> int:
        """Tokens of all messages, without the tools and framing of the request."""
        return self.system_tokens + sum([message.tokens for message in self.chain])


def _sort(messages: Iterable[Message], chained: list[Message], systems: list[tuple[int, Message]]) -> None:
    """Appends each message to `chained` or to `systems`."""
    system, tool = Role.SYSTEM, Role.TOOL
    for message in messages:
        role = message.role
        if role is system:
            systems.append((len(chained), message))
        elif role is tool and not message.is_result:
            chained.append(_as_placed(message, chained))
        else:
            chained.append(message)


def _as_placed(message: Message, before: Sequence[Message]) -> Message:
    """The message, as the user's where it looks like tool output but follows no assistant message or other output."""
    return message if before and before[-1].role is not Role.USER else replace(message, role=Role.USER)


def unknown(digest: bytes, role: Role) -> Message:
    """A placeholder in the chain for a message of which only the digest is stored."""
    return Message(b"", role, "", digest, 0, parsed={})


def literal(body: Mapping[str, object], counter: Counter, role: Role, raw: str | None = None) -> Message:
    """A message of ours, with its tokens counted. It belongs to no chain and has no digest.

    `raw` is its JSON text, if that already exists.
    """
    text = dump(body) if raw is None else raw
    return _message(text.encode("utf-8", "surrogatepass"), body, role, b"", counter.message(body), _calls(body))


def _calls(body: Mapping[str, object]) -> tuple[Call, ...]:
    return tuple(Call(*fields) for fields in call_fields(body))


def dump(body: Mapping[str, object]) -> str:
    """The JSON text of a message of ours. Lone surrogates stay escaped, so that the text can always be encoded."""
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
