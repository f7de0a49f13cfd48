"""Messages, and the dialect in which they are written.

Each wire protocol writes messages in its own way: a tool's result is a message in one, a block of the user's message in
another, an item of a flat list in the third. Only a `Dialect` knows how its protocol does this. It reads a value, which
is one parsed element of the client's list, into a `Message`: the part it plays, its calls, and the calls that it
answers. It also writes the few values that strategies put in the place of others. Kept messages are never written
again: a message has the bytes that it came in.

A dialect has no state. A message knows its dialect, and a token counter knows the dialect whose values it counts.

Two messages have the same *digest* if a client may well mean the same message: SDKs rebuild a reply before they send it
back, drop `null` members, add fields of their own, or write the arguments of a call with different spacing. So a digest
covers only these fields, which the message's dialect chooses, in a canonical form:

    role, name, content, calls (id, name, arguments), the ids of the calls that it answers

Arguments are compared as JSON if they parse; `""` equals `{}`, and 1.0 equals 1. Equal messages of two dialects have
different digests, so a history in one dialect is never found in another.

The chain is h_i = H(h_{i-1}, digest_i): equal chain digests mean equal histories up to that message.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from strategies.core.client_context import is_context, users_words
from strategies.core.parsing import MAX_DIGITS, has_many_values, loads

# -- digests -------------------------------------------------------------------------------------------------------

DIGEST_BYTES = 16
ROOT = b"\x00" * DIGEST_BYTES

_UNNAMED = "chat"  # its digests were stored before there were other dialects


def digest_of(dialect: str, fields: Iterable[str]) -> bytes:
    """The digest of the fields of one message, 16 bytes."""
    hasher = blake2b(digest_size=DIGEST_BYTES, person=b"" if dialect == _UNNAMED else dialect.encode())
    for text in fields:
        data = text.encode("utf-8", "surrogatepass")
        hasher.update(len(data).to_bytes(8, "big"))
        hasher.update(data)
    return hasher.digest()


def chain(digests: Iterable[bytes], root: bytes = ROOT) -> list[bytes]:
    """The chain digest after each message, in order: `link` for each, without its calls."""
    node, nodes = root, []
    for digest in digests:
        node = blake2b(node + digest, digest_size=DIGEST_BYTES).digest()
        nodes.append(node)
    return nodes


def link(previous: bytes, digest: bytes) -> bytes:
    """The chain digest after `previous` and one more message with `digest`."""
    return blake2b(previous + digest, digest_size=DIGEST_BYTES).digest()


def canonical_arguments(arguments: str) -> str:
    """Arguments as canonical JSON if they parse, else unchanged; an empty text counts as an empty object.

    Those with very many values or very long numbers are not parsed.
    """
    if has_many_values(arguments):
        return arguments
    try:
        return canonical_json(_ARGUMENTS.decode(arguments.strip() or "{}"))
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> int | float:
    """A whole number as an int, even if written as 1.0: JSON has one kind of number, and JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _WRITTEN_OUT else value


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("an integer has too many digits")
    return int(digits)


_WRITTEN_OUT = 1e21  # below this JavaScript writes a whole number without an exponent
_ARGUMENTS = json.JSONDecoder(parse_float=_number, parse_int=_short)


def canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


# -- messages and dialects -----------------------------------------------------------------------------------------

Found = TypeVar("Found")
Value: TypeAlias = Mapping[str, object]  # one element of a message list, parsed


class Role(Enum):
    """The part that a message plays in the conversation; not always what the wire calls it."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(NamedTuple):
    """A tool call. `id` is "" if the call has none; `arguments` is JSON text, or any text for some tools."""

    id: str
    name: str
    arguments: str


class Reading(NamedTuple):
    """What a dialect reads from a value."""

    role: Role  # the part that the message plays, as far as the value alone tells
    written_role: str  # the role as the client wrote it; "" if there is none
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[str, ...] = ()  # the ids of the calls that the message answers
    is_result: bool = False  # whether the client sent the message as a tool's result
    is_signed: bool = False
    """Whether it has reasoning that a server may bind to the messages before it (`strategies.core.reasoning`)."""
    stays: bool = False  # whether it has loaded tools, which later calls use
    opens: tuple[str, ...] = ()  # the ids of calls, also of the vendor's tools, that later messages end or go on with
    closes: tuple[str, ...] = ()  # the ids of earlier messages' calls that end here or go on; those it opens again


@dataclass(frozen=True, slots=True)
class Form:
    """What message lists an upstream accepts (`strategies.core.view`).

    User and assistant may have to alternate. An assistant message may be allowed a name or an empty content, and a
    system message a place after other messages.
    """

    alternate_roles: bool = False
    assistant_name: bool = True
    empty_assistant: bool = True
    middle_system: bool = True


ACKNOWLEDGED = "Understood."
"""The text of an assistant message that would otherwise be empty, in dialects that forbid it."""


class Dialect(ABC):
    """Reads and writes the values of one wire protocol."""

    name: str  # the name of the protocol. All digests depend on it, except those of `chat`.
    system_roles: Sequence[str] = ("system", "developer")  # the written roles of messages outside the chain
    has_steps = True  # whether neighbouring assistant messages are parts of one reply
    joins_ours = False  # whether what we add behind an opaque head becomes blocks of the user's message after it
    systems_follow_users = False  # whether a system message may only follow a user's message, or results
    binds_reasoning = False
    """Whether reasoning is signed in every conversation, as far as nothing else is known of the server."""
    drops_reasoning = False  # whether a server silently drops reasoning if something before it has changed

    # -- reading

    @abstractmethod
    def read(self, value: Value) -> Reading:
        """Reads a value, even one that breaks the rules of the protocol."""

    @abstractmethod
    def text(self, value: Value) -> str:
        """All text of a value; a part that is not text appears as its type in brackets."""

    @abstractmethod
    def pictures(self, value: Value) -> int:
        """How many parts of a value are pictures."""

    @abstractmethod
    def digest_fields(self, value: Value) -> Iterable[str]:
        """The fields that identify a message, in a canonical form: no cache markers, and nothing that SDKs change."""

    # -- writing

    @abstractmethod
    def user(self, text: str) -> Value:
        """A user message."""

    @abstractmethod
    def assistant(self, text: str, name: str = "") -> Value:
        """An assistant message. If `name` is given, dialects without names write a user message instead."""

    # -- rewriting

    mixes_results = False  # whether a message with results may have the user's words too

    def words_beside(self, value: Value) -> str:
        """The user's words in a message with results."""
        return ""

    def results_text(self, value: Value) -> str:
        """The text of a message with results, without the words beside them."""
        return self.text(value)

    def has_failed(self, value: Value) -> bool:
        """Whether a result says, by the protocol's own mark, that its call failed."""
        return False

    def texts(self, value: Value) -> Sequence[str]:
        """The texts that may be cut: one for each call that the value answers; otherwise all its text as one."""
        return [self.text(value)]

    @abstractmethod
    def with_texts(self, value: Value, texts: Sequence[str]) -> Value:
        """The value with these texts in place of those that `Dialect.texts` returns."""

    @abstractmethod
    def is_plain(self, value: Value) -> bool:
        """Whether the value is just one text in its framing, so that its tokens give those of the text."""

    @abstractmethod
    def with_arguments(self, value: Value, rewrite: Callable[[ToolCall], Value | None]) -> Value:
        """The value with the arguments that `rewrite` returns for each call; None leaves a call unchanged.

        Returns the same object if no call changes. Only calls whose arguments are a JSON object are rewritten.
        """

    def unbound(self, value: Value) -> Value:
        """The value without its signed reasoning. The same object if it has none."""
        return value

    # -- forms

    def fitted(self, value: Value, form: Form) -> Value | None:
        """A value that the proxy wrote, adapted to the form.

        Returns the same object if it is accepted as it is, and None if it must be left out.
        """
        return value if value.get("content") else None

    def as_user(self, value: Value) -> Value:
        """A value that the proxy wrote, as a user message."""
        return {"role": "user", "content": value.get("content")}

    @abstractmethod
    def merged(self, first: Value, second: Value) -> Value:
        """Two neighbours of the same role as one value."""


class TokenCounter(Protocol):
    """Counts tokens with one model's tokenizer."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of the values that it counts."""

    @property
    def factor(self) -> float:
        """The most tokens that it makes of a byte of text."""

    def text(self, text: str) -> int: ...

    def message(self, value: Value) -> int:
        """Tokens of a value with its framing."""


class Pictures(NamedTuple):
    number: int = 0
    tokens: int = 0  # by our own count; about, because a message is counted as a whole

    def plus(self, other: Pictures) -> Pictures:
        return Pictures(self.number + other.number, self.tokens + other.tokens)

    def minus(self, other: Pictures) -> Pictures:
        return Pictures(self.number - other.number, self.tokens - other.tokens)


NO_PICTURES = Pictures()
_FRAME, _BYTES_PER_TOKEN = 4, 4
_NEVER = re.compile(r"(?!)")
_TAIL = 4_096  # characters at either end of a text in which a tool's output is recognised


@dataclass(frozen=True, slots=True)
class Message:
    """One message: the bytes that it came in, and what was read from them."""

    data: bytes  # the JSON text as it came in
    dialect: Dialect
    role: Role  # the part that the message plays in the conversation; the next fields are those of `Reading`
    written_role: str
    digest: bytes
    """The digest by which the chain identifies the message (`strategies.core.messages`); empty if we wrote it."""
    tokens: int
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[str, ...] = ()
    is_result: bool = False  # False even for a tool's output if the client sent it as a user message
    is_signed: bool = False
    stays: bool = False
    """Whether it has loaded tools, or is a user message in which only the client says something (`client_context`)."""
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    unpriced: bool = False
    """Whether it has a part whose tokens nobody can know, such as a file that only the server has; it counts 0."""
    pictures: Pictures = NO_PICTURES
    parsed: Value | None = field(default=None, compare=False, repr=False)
    """The parsed JSON, or None: messages cached for later requests go without it (`lean`), and `body` parses again."""
    _findings: dict[str, Any] | None = field(default=None, init=False, compare=False, repr=False)

    def once(self, name: str, find: Callable[[], Found]) -> Found:
        """What `find` reads of the message; kept with it by this name, so that later requests need not read it."""
        known = self._findings
        if known is None:
            known = {}
            object.__setattr__(self, "_findings", known)  # it holds nothing but what the bytes say
        if name not in known:
            known[name] = find()
        found: Found = known[name]
        return found

    @property
    def continues_reply(self) -> bool:
        """Whether an assistant message continues the reply that the assistant message before it belongs to."""
        return self.dialect.has_steps

    @property
    def raw(self) -> str:
        return self.data.decode("utf-8", "surrogatepass")

    @property
    def body(self) -> Value:
        if self.parsed is not None:
            return self.parsed
        body: Value = loads(self.raw)
        return body

    @property
    def text(self) -> str:
        """All text of the message; a part that is not text appears as its type in brackets."""
        return self.dialect.text(self.body)

    @property
    def words(self) -> str:
        """What the user says in the message, which may be a tool's result too; not what the client put there."""
        if self.role is Role.USER:
            return users_words(self.text)
        return self.dialect.words_beside(self.body) if self.is_result and self.dialect.mixes_results else ""

    @property
    def printed(self) -> str:
        """The text of the message; of a tool's, only that of its results, without the words beside them."""
        is_mixed = self.role is Role.TOOL and self.dialect.mixes_results
        return self.dialect.results_text(self.body) if is_mixed else self.text

    def lean(self) -> Message:
        """The same message without its parsed JSON. Every new message is made twice, so `replace` would be too slow."""
        known = self.data, self.dialect, self.role, self.written_role, self.digest, self.tokens
        read = self.calls, self.answers, self.is_result, self.is_signed, self.stays
        return Message(*known, *read, self.opens, self.closes, self.unpriced, self.pictures)


class Reader:
    """Builds messages. A user message that begins or ends like one of the patterns is a tool's output."""

    def __init__(self, begins: re.Pattern[str] = _NEVER, ends: re.Pattern[str] = _NEVER) -> None:
        self._begins, self._ends = begins, ends

    def read(
        self,
        raw: str | bytes,
        value: Value,
        tokens: int,
        dialect: Dialect,
        digest: bytes | None = None,
        *,
        unpriced: bool = False,
    ) -> Message:
        """A message from its JSON text, the parsed JSON, its tokens, and its digest, if that is already computed."""
        data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
        role, written_role, calls, answers, is_result, is_signed, stays, opens, closes = dialect.read(value)
        if role is Role.USER:
            text = dialect.text(value)
            role, stays = (Role.TOOL, False) if self._is_output(text) else (role, is_context(text))
        known = digest or message_digest(value, dialect)
        read = calls, answers, is_result, is_signed, stays, opens, closes
        number = dialect.pictures(value)
        pictures = Pictures(number, max(tokens - _tokens_of(dialect.text(value)), 0)) if number else NO_PICTURES
        return Message(data, dialect, role, written_role, known, tokens, *read, unpriced, pictures, value)

    def role(self, value: Value, dialect: Dialect) -> Role:
        """The part that a message plays, whatever comes before it."""
        role = dialect.read(value).role
        return Role.TOOL if role is Role.USER and self._is_output(dialect.text(value)) else role

    def _is_output(self, text: str) -> bool:
        """Looks at the beginning and the end, because a search holds all threads, and a text may have megabytes."""
        return self._begins.match(text, 0, _TAIL) is not None or self._ends.search(text[-_TAIL:]) is not None


def _tokens_of(text: str) -> int:
    """About the tokens of a text, its framing included."""
    return _FRAME + len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN


def message_digest(value: Value, dialect: Dialect) -> bytes:
    return digest_of(dialect.name, dialect.digest_fields(value))


def literal(value: Value, counter: TokenCounter, role: Role | None = None, raw: str | None = None) -> Message:
    """A message that the proxy wrote, with its tokens counted. It belongs to no chain and has no digest.

    `role` is needed if the value alone does not tell which part the message plays; `raw` is its JSON text, if that
    already exists.
    """
    read = counter.dialect.read(value)
    data, tokens = (dump(value) if raw is None else raw).encode("utf-8", "surrogatepass"), counter.message(value)
    more = read.calls, read.answers, read.is_result, read.is_signed, read.stays, read.opens, read.closes
    return Message(data, counter.dialect, role or read.role, read.written_role, b"", tokens, *more, parsed=value)


def dump(value: Value) -> str:
    """The JSON text of a message that the proxy wrote, with lone surrogates escaped: it can always be encoded."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text
