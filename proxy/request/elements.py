"""Elements: the messages of a request as bytes, each with what was read from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

from proxy.calibration.features import Features, of_messages
from strategies.core.digest import message_digest
from strategies.core.messages import Message
from strategies.core.parsing import loads
from strategies.core.transcript import Transcript

MAX_COST_IN_SPAN = 16 * 1024
"""The largest `cost` of a message in a span; for larger messages the comparison takes the time, not the step."""
_IS_TEXT = attrgetter("is_text")


class Element:
    """One element of the array `messages`: its bytes, and what was read from them."""

    __slots__ = (
        *("__weakref__", "_value", "cost", "data", "is_text", "last_checked", "last_used", "messages", "owner"),
        *("prefixes", "role", "span", "successor"),
    )

    data: bytes
    """Its JSON text."""
    owner: str
    """The tenant that sent it."""
    role: str
    is_text: bool
    """Whether its content is text only, so that its bytes bound its tokens."""
    messages: dict[str, Message]
    """The messages read from it, by the name of the counter that counted their tokens."""
    successor: ref[Element] | None
    """The element that came next in the last body that had both."""
    prefixes: tuple[CachedPrefix, ...]
    """The cached message lists that end with it (`proxy/request/prefix_cache.py`)."""
    cost: int
    """Bytes of memory that keeping it takes; 0 if it is not in the cache."""
    last_used: int
    """The number of the last body that had it outside of a span."""
    last_checked: int
    """The number of the newest body when it was last the oldest element of the cache, or was added."""
    span: Span | None
    """The span that it belongs to; only elements in the cache have one."""

    def __init__(self, data: bytes, value: Mapping[str, Any], owner: str = "") -> None:
        self.data = data
        self.owner = owner
        self.role = value["role"]
        self.is_text = _is_text(value.get("content"))
        self.messages = {}
        self.successor = None
        self.prefixes = ()
        self.cost = self.last_used = self.last_checked = 0
        self.span = None
        self._value: Mapping[str, Any] | None = value

    @property
    def can_join_span(self) -> bool:
        """Whether it may become part of a span: it is in the cache, not large, and in no span yet."""
        return self.span is None and 0 < self.cost <= MAX_COST_IN_SPAN

    @classmethod
    def of(cls, raw: str) -> Element:
        """The element with this JSON text."""
        return cls(raw.encode("utf-8", "surrogatepass"), loads(raw))

    @property
    def raw(self) -> str:
        """Its JSON text."""
        return self.data.decode("utf-8", "surrogatepass")

    @property
    def digest(self) -> bytes:
        """The digest of its message."""
        message = next(iter(self.messages.values()), None)
        return message_digest(self.value) if message is None else message.digest

    @property
    def value(self) -> Mapping[str, Any]:
        """Its parsed form, parsed again if `set_message` has dropped it."""
        value: Mapping[str, Any] = loads(self.raw) if self._value is None else self._value
        return value

    def set_message(self, counted_by: str, message: Message) -> None:
        """Keeps the message read from it and drops the parsed form, which takes more memory than all the rest."""
        self.messages[counted_by] = message.lean()
        self._value = None


class Span:
    """Elements of the cache that stood side by side, each of which refers to it.

    `texts` are the bytes of each element, and `last_used` is the number of the last body that had the whole span.
    """

    __slots__ = ("elements", "is_text", "last_used", "texts")

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements = elements
        self.texts = [each.data for each in elements]
        self.is_text = are_text(elements)
        self.last_used = 0

    @classmethod
    def bind(cls, elements: Sequence[Element]) -> None:
        """Makes a span of elements that can join one."""
        span = cls(elements)
        for each in elements:
            each.span = span

    def dissolve(self) -> None:
        """Takes its elements out of the span."""
        for each in self.elements:
            each.span, each.last_used = None, max(each.last_used, self.last_used)


def are_text(elements: Iterable[Element | Span]) -> bool:
    """Whether all of them are text only; of a picture, for example, the bytes do not bound the tokens."""
    return False not in map(_IS_TEXT, elements)


def _is_text(content: object) -> bool:
    """Whether a message's content is text only, so that its bytes bound its tokens."""
    if not isinstance(content, list):
        return True
    return all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in content)


class CountedTranscript(NamedTuple):
    """A transcript, and the features of its chain from which calibration foretells the upstream's count."""

    transcript: Transcript
    features: Features

    @classmethod
    def of(cls, messages: Iterable[Message]) -> CountedTranscript:
        """The transcript of some messages."""
        transcript = Transcript.of(messages)
        return cls(transcript, of_messages(transcript.chain))

    def followed(self, messages: Iterable[Message]) -> CountedTranscript:
        """The transcript with more messages after its own."""
        longer = self.transcript.extended_by(messages)
        return CountedTranscript(longer, self.features.plus(of_messages(longer.chain[len(self.transcript.chain) :])))

    def led_by(self, systems: Sequence[Message]) -> CountedTranscript:
        """The transcript with system messages before its own."""
        return CountedTranscript(self.transcript.with_leading_systems(systems), self.features)


class CachedPrefix(NamedTuple):
    """The first elements of a message list, and the transcript that was built from them."""

    elements: Sequence[Element]
    counted_by: str
    """The name of the counter that counted the tokens of the transcript."""
    counted: CountedTranscript
    is_first: bool
    """Whether it was stored when the list had no prefix yet; such a prefix stays where it is."""

    @property
    def is_intact(self) -> bool:
        """Whether all of its elements are still in the message cache."""
        return all(each.cost for each in self.elements)
