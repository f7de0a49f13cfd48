"""The transcript: the message list that a client sent, as the strategies see it.

A message keeps the exact bytes it came in as, so that what is not changed is never written again. System and
developer messages stand outside the chain: agents put the time of day into them, so no digest may depend on them and
no strategy may touch them. A transcript is therefore two sequences: the *chain* of all other messages, and the
*systems*, each with the number of chain messages before it.

Some agents send the output of their tools as user messages. `Reader` is told by patterns which these are; they
get the role `TOOL` here, for they answer the assistant and open no turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from strategies.core.digest import ROOT, call_fields, chain, message_digest
from strategies.core.parsing import loads

if TYPE_CHECKING:
    from strategies.core.condensation import Overlay
    from strategies.core.form import Form

SYSTEM_ROLES = ("system", "developer")
"""Role members of what stands outside the chain."""
RESULT_ROLES = ("tool", "function")
"""Role members of what answers a call."""


class Counter(Protocol):
    """Counts tokens with one model's tokenizer."""

    def text(self, text: str) -> int:
        """Tokens of a plain text."""
        ...

    def message(self, body: Mapping[str, object]) -> int:
        """Tokens of a chat message with its framing."""
        ...


class Role(Enum):
    """What a message is in the conversation; not always what its `role` member says."""

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
    """One chat message: the bytes it came in as, and what was read from them.

    `role` is what it is in the conversation, `written` its role member; `is_result` tells whether that says that it is
    the result of a call, and not only its text that it is a tool's output. `answers` is the id of that call. `parsed`
    is its parsed form while that is at hand: a message that is kept for later requests goes without (`lean`), and
    `body` then parses it when asked.
    """

    data: bytes
    role: Role
    written: str
    digest: bytes
    tokens: int
    calls: tuple[Call, ...] = ()
    answers: str = ""
    is_result: bool = False
    parsed: Mapping[str, object] | None = field(default=None, compare=False, repr=False)

    @property
    def known(self) -> bool:
        """Whether its text is at hand; of a message that only a digest is left of, no view can show anything."""
        return bool(self.data)

    @property
    def raw(self) -> str:
        """Its JSON text."""
        return self.data.decode("utf-8", "surrogatepass")

    @property
    def body(self) -> Mapping[str, object]:
        """Its parsed form."""
        if self.parsed is not None:
            return self.parsed
        body: Mapping[str, object] = loads(self.raw)
        return body

    @property
    def text(self) -> str:
        """The text of the content; parts that are not text are named in brackets."""
        return content_text(self.body.get("content"))

    def lean(self) -> Message:
        """The same message without its parsed form."""
        parts = self.data, self.role, self.written, self.digest, self.tokens, self.calls, self.answers, self.is_result
        return Message(*parts)


class Reader:
    """Builds messages; `tool_output` are patterns of user messages that are tool results."""

    def __init__(self, tool_output: Sequence[re.Pattern[str]] = ()) -> None:
        self._tool_output = tuple(tool_output)

    def read(self, raw: str, body: Mapping[str, object], tokens: int, digest: bytes | None = None) -> Message:
        """A message from its JSON text, the parsed text, its count, and its digest where it is known."""
        return self.read_bytes(raw.encode("utf-8", "surrogatepass"), body, tokens, digest)

    def read_bytes(self, data: bytes, body: Mapping[str, object], tokens: int, digest: bytes | None = None) -> Message:
        """The same from the bytes of the JSON text."""
        calls = _calls(body) if body.get("role") == "assistant" else ()
        return _message(data, body, self.role(body), digest or message_digest(body), tokens, calls)

    def role(self, body: Mapping[str, object]) -> Role:
        """The role that a message plays; unknown roles count as the user's."""
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
    """`chain`: all but system messages. `systems`: (chain messages before it, message), in order.

    `patches` are hidden rounds that stand in it, in order: a view shows them where no head covers their place. `form`
    is what the upstream takes, None for anything: by it views of this transcript are written.
    """

    chain: tuple[Message, ...]
    systems: tuple[tuple[int, Message], ...] = ()
    patches: tuple[Overlay, ...] = ()
    form: Form | None = None

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Transcript:
        """Sorts messages into chain and systems; tool output that answers nothing is the user's."""
        chained: list[Message] = []
        systems: list[tuple[int, Message]] = []
        _sort(messages, chained, systems)
        return cls(tuple(chained), tuple(systems))

    def followed(self, messages: Iterable[Message]) -> Transcript:
        """The transcript that goes on with messages; what is known of this one is not worked out again."""
        chained, systems = list(self.chain), list(self.systems)
        _sort(messages, chained, systems)
        longer = replace(self, chain=tuple(chained), systems=tuple(systems))
        rest = Transcript(longer.chain[len(self.chain) :], longer.systems[len(self.systems) :])
        root = self.digests[-1] if self.chain else ROOT
        # As `cached_property` keeps them.
        vars(longer).update(
            digests=[*self.digests, *chain((message.digest for message in rest.chain), root)],
            unknown=[*self.unknown, *(len(self.chain) + i for i in rest.unknown)],
            system_tokens=self.system_tokens + rest.system_tokens,
            tokens=self.tokens + rest.tokens,
        )
        return longer

    def led_by(self, systems: Sequence[Message]) -> Transcript:
        """The transcript with system messages before all others; what is known of this one is not worked out again."""
        if not systems:
            return self
        led = replace(self, systems=(*((0, system) for system in systems), *self.systems))
        more = sum([system.tokens for system in systems])
        vars(led).update(digests=self.digests, unknown=self.unknown)
        vars(led).update(system_tokens=self.system_tokens + more, tokens=self.tokens + more)
        return led

    def in_form(self, form: Form | None) -> Transcript:
        """The same messages for an upstream that takes this form."""
        return self._shown(form=form)

    def patched(self, patches: tuple[Overlay, ...]) -> Transcript:
        """The same messages with these hidden rounds among them."""
        return self._shown(patches=patches)

    def _shown(self, **otherwise: Any) -> Transcript:
        """The transcript shown otherwise; all that was worked out of its messages holds for that one too."""
        other = replace(self, **otherwise)
        vars(other).update({name: known for name, known in vars(self).items() if name not in vars(other)})
        return other

    @cached_property
    def digests(self) -> list[bytes]:
        """The chain digest after each chain message."""
        return chain(message.digest for message in self.chain)

    @cached_property
    def unknown(self) -> list[int]:
        """The chain indices of the messages that nothing is left of but their digests."""
        return [i for i, message in enumerate(self.chain) if not message.data]

    @cached_property
    def task(self) -> int | None:
        """The chain index of the first user message: what the conversation is about."""
        return next((i for i, message in enumerate(self.chain) if message.role is Role.USER), None)

    @cached_property
    def last_user(self) -> int | None:
        """The chain index of the last user message: what the model must answer."""
        backwards = range(len(self.chain) - 1, -1, -1)
        return next((i for i in backwards if self.chain[i].role is Role.USER), None)

    @cached_property
    def system_tokens(self) -> int:
        """Tokens of all system and developer messages."""
        return sum([message.tokens for _, message in self.systems])

    @cached_property
    def tokens(self) -> int:
        """Tokens of all messages, without tools and framing of the request."""
        return self.system_tokens + sum([message.tokens for message in self.chain])


def _sort(messages: Iterable[Message], chained: list[Message], systems: list[tuple[int, Message]]) -> None:
    """Puts messages behind those that are there."""
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
    """A user message that looks like tool output is one only behind an assistant or another output."""
    return message if before and before[-1].role is not Role.USER else replace(message, role=Role.USER)


def unknown(digest: bytes, role: Role) -> Message:
    """The place of a message in a chain where nothing is left of it but its digest."""
    return Message(b"", role, "", digest, 0, parsed={})


def literal(body: Mapping[str, object], counter: Counter, role: Role, raw: str | None = None) -> Message:
    """A message of ours, counted; `raw` is its JSON text where that is known. It is in no chain and has no digest."""
    text = dump(body) if raw is None else raw
    return _message(text.encode("utf-8", "surrogatepass"), body, role, b"", counter.message(body), _calls(body))


def _calls(body: Mapping[str, object]) -> tuple[Call, ...]:
    return tuple(Call(*fields) for fields in call_fields(body))


def dump(body: Mapping[str, object]) -> str:
    """JSON text of a message of ours; lone surrogates stay escapes, so that it can always be encoded."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(body, ensure_ascii=True, separators=(",", ":"))
    return text


def content_text(content: object) -> str:
    """The text of a message's content; other parts are named in brackets, as `[image_url]`."""
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
