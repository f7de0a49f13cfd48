"""Messages that were read before, recognised by their bytes.

A chat client sends its whole history each time, and nearly all of it came with the request before. So every message
that was read is kept: its bytes, what was made of them, and which message followed it the last time. A new body is
compared with that. Where it goes on with the bytes of the message that followed before, it is that message, for no
longer JSON value begins with a complete object. Such a message is neither decoded nor parsed, digested or counted
again; it costs one comparison of memory. Where the guess fails, one message is parsed and looked up by its bytes, and
guessing goes on behind it. Messages that stood side by side twice make a span, `SPAN` of them: their bytes are joined
and compared at one go, for copying them takes less than a step for each.

The messages used of late are kept, up to a number of bytes: what was used since it was the oldest gets another round,
so that a use costs no more than a mark, one for a whole span. What follows a message is held weakly, so that what was
forgotten is not kept by its neighbours; a span is dissolved with the first of its messages that is forgotten. Nothing
here is thread-safe: there is one per app, on its event loop.
"""

from __future__ import annotations

import re
from codecs import utf_8_decode
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from proxy.request.envelope import Envelopes
from proxy.request.nesting import DEEPEST, is_deeper, may_be_deeper
from strategies.core.digest import message_digest
from strategies.core.parsing import decode, loads
from strategies.core.transcript import Message

if TYPE_CHECKING:
    from proxy.request.prefix_cache import CachedPrefix

MOST_BYTES = 16 * 1024 * 1024
LARGEST_SHARE = 16
"""A message larger than this part of all is not kept."""
ENTRY_BYTES = 1_250
"""About what keeping a message takes besides its bytes."""
SPAN = 32
"""Messages of a span: few enough that joining them costs little where they differ."""
MOST_IN_SPAN = 16 * 1024
"""The `cost` of a message up to which it may be in a span: a step for a larger one is not what takes the time."""

_IS_TEXT = attrgetter("is_text")
_WINDOW = 2_048
_WIDER = 8
_JOINT = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_SPACE = re.compile(rb"[ \t\n\r]*")


class Element:
    """One element of `messages`: its bytes and, where they are at hand, their value.

    `counted` holds the message that was made of it, by what counted its tokens; its parsed form is dropped there.
    `following` is the element that came next in the last body that had both. `beginnings` are what was made of the
    message list that ends with it, where that is kept (`proxy/request/prefix_cache.py`). `cost` is what keeping it
    takes in bytes, 0 where it is not kept; `used` is the number of the last body that had it by itself, and `passed`
    that of the newest one when it was last about to be forgotten. `span` is the one that it is in; only what is kept is
    in any.
    """

    __slots__ = (
        *("__weakref__", "_value", "beginnings", "cost", "counted", "data", "following", "is_text", "passed", "role"),
        *("span", "used"),
    )

    def __init__(self, data: bytes, value: Mapping[str, Any]) -> None:
        self.data = data
        self.role: str = value["role"]
        self.is_text = _is_text(value.get("content"))
        self.counted: dict[str, Message] = {}
        self.following: ref[Element] | None = None
        self.beginnings: tuple[CachedPrefix, ...] = ()
        self.cost = self.used = self.passed = 0
        self.span: Span | None = None
        self._value: Mapping[str, Any] | None = value

    @property
    def is_free(self) -> bool:
        """Whether it may become part of a span: it is kept, not large, and in none."""
        return self.span is None and 0 < self.cost <= MOST_IN_SPAN

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
        message = next(iter(self.counted.values()), None)
        return message_digest(self.value) if message is None else message.digest

    @property
    def value(self) -> Mapping[str, Any]:
        """Its parsed form; parsed again where that was released."""
        value: Mapping[str, Any] = loads(self.raw) if self._value is None else self._value
        return value

    def settle(self, counted_by: str, message: Message) -> None:
        """Keeps what was made of it; the parsed form is dropped, for it takes more room than all the rest."""
        self.counted[counted_by] = message.lean()
        self._value = None


class Span:
    """Kept elements that stood side by side, and the bytes of each; all of them hold it.

    `used` is the number of the last body that had them so.
    """

    __slots__ = ("elements", "is_text", "texts", "used")

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements = elements
        self.texts = [each.data for each in elements]
        self.is_text = are_text(elements)
        self.used = 0

    @classmethod
    def bind(cls, elements: Sequence[Element]) -> None:
        """Makes a span of free elements."""
        span = cls(elements)
        for each in elements:
            each.span = span

    def dissolve(self) -> None:
        """Leaves its elements without one."""
        for each in self.elements:
            each.span, each.used = None, max(each.used, self.used)


class Run(NamedTuple):
    """The elements of an array: `alone` are those of them that were not found by one of the `spans`.

    `end` is the place behind the last one and the space that follows it.
    """

    elements: list[Element]
    alone: list[Element]
    spans: list[Span]
    end: int


class MessageCache:
    """The messages that were read before, at most `most_bytes` of them, and the `envelopes` around them."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.envelopes = Envelopes()
        self._most = most_bytes
        self._size = 0
        self._kept: OrderedDict[bytes, Element] = OrderedDict()
        self._opening: ref[Element] | None = None
        self._bodies = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes of what is kept, with what keeping it takes."""
        return self._size

    def run(self, data: bytes, at: int) -> Run:
        """The objects of the array in `data` whose first one stands at `at`; raises `ValueError` for anything else."""
        self._bodies += 1
        first = self._guessed(data, at, self._opening) or self._parsed(data, at)
        self._opening = ref(first)
        run = Run([first], [first], [], at)
        at += len(first.data)
        while joint := _JOINT.match(data, at):
            behind = self._followed(data, at, joint[0], run)
            if behind == at:
                element = self._parsed(data, joint.end())
                run.elements[-1].following = ref(element)
                run.elements.append(element)
                run.alone.append(element)
                behind = joint.end() + len(element.data)
            at = behind
        end = _SPACE.match(data, at)
        return run._replace(end=end.end() if end else at)

    def _guessed(self, data: bytes, at: int, guess: ref[Element] | None) -> Element | None:
        element = guess() if guess is not None else None
        return element if element is not None and data.startswith(element.data, at) else None

    def _parsed(self, data: bytes, at: int) -> Element:
        """The element at `at`, the kept one where it was read before."""
        value, end = _value_at(data, at)
        text = data[at:end]
        return self._kept.get(text) or Element(text, _checked(value, text))

    def _followed(self, data: bytes, at: int, joint: bytes, run: Run) -> int:
        """Adds the elements that followed the last one before, while `data` has them; the place behind the last."""
        starts, width, free = data.startswith, len(joint), 0
        elements, alone = run.elements, run.alone
        guess = elements[-1].following
        while guess is not None:
            element = guess()
            if element is None or not starts(joint, at):
                break
            span = element.span
            if span and span.elements[0] is element and starts(whole := joint.join(span.texts), at + width):
                elements += span.elements
                run.spans.append(span)
                span.used = self._bodies
                at += width + len(whole)
                free = 0
            elif starts(element.data, at + width):
                elements.append(element)
                alone.append(element)
                at += width + len(element.data)
                free = free + 1 if element.is_free else 0
            else:
                break
            if free == SPAN:
                Span.bind(elements[-SPAN:])
                free = 0
            guess = elements[-1].following
        return at

    def keep(self, elements: Iterable[Element]) -> None:
        """Keeps elements, as the most recently used ones; those of a run's spans are so without it."""
        for element in elements:
            if element.cost:
                element.used = self._bodies
            elif other := self._kept.get(element.data):
                other.used = self._bodies
            else:
                self._add(element)
        while self._size > self._most:
            self._forget_one()

    def _add(self, element: Element) -> None:
        cost = _cost(element)
        if cost <= self._most // LARGEST_SHARE:
            self._kept[element.data] = element
            element.cost, element.passed = cost, self._bodies
            self._size += cost

    def _forget_one(self) -> None:
        """Forgets the oldest element that was not used since it was the oldest the last time."""
        data, oldest = self._kept.popitem(last=False)
        if max(oldest.used, oldest.span.used if oldest.span else 0) > oldest.passed:
            oldest.passed, self._kept[data] = self._bodies, oldest
            # They hold all their elements, and what is forgotten must not stay by that.
            oldest.beginnings = tuple(each for each in oldest.beginnings if each.is_kept)
        else:
            self._size -= oldest.cost
            # A beginning holds its own last element.
            oldest.cost, oldest.beginnings = 0, ()
            if oldest.span:
                oldest.span.dissolve()  # it holds all its elements


def are_text(elements: Iterable[Element | Span]) -> bool:
    """Whether none of them has anything whose tokens its bytes do not bound, such as a picture."""
    return False not in map(_IS_TEXT, elements)


def _value_at(data: bytes, at: int) -> tuple[Any, int]:
    """The JSON value at `at` and where it ends; decodes little more than it needs."""
    width = _WINDOW
    while True:
        is_rest = at + width >= len(data)
        text, _ = utf_8_decode(data[at : at + width], "strict", is_rest)
        try:
            value, stop = decode(text)
        except ValueError:
            if is_rest:
                raise
            width *= _WIDER
        else:
            return value, at + (stop if text.isascii() else len(text[:stop].encode()))


def _checked(value: Any, text: bytes) -> Mapping[str, Any]:
    """A parsed message; raises `ValueError` where it is none, or nested too deeply for a body to hold it."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError("no message with a role")  # noqa: TRY004
    if may_be_deeper(text, DEEPEST - 1) and is_deeper([value], DEEPEST - 1):
        raise ValueError("nested too deeply")
    return value


def _cost(element: Element) -> int:
    """Its bytes, those of the arguments that its calls hold a second time, and what keeping it takes."""
    message = next(iter(element.counted.values()), None)
    calls = sum(len(call.arguments) for call in message.calls) if message else 0
    return len(element.data) + calls + ENTRY_BYTES


def _is_text(content: object) -> bool:
    """Whether a content has nothing whose tokens its bytes do not bound, such as a picture."""
    if not isinstance(content, list):
        return True
    return all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in content)
