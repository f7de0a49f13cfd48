"""A cache of messages that recognises them by their bytes.

A chat client sends its whole history with each request, and nearly all of it came with the request before. The cache
keeps the bytes of every message, the messages read from them, and which message came next the last time. While a new
body continues with the bytes of the expected next message, it contains that message: no longer JSON value begins with a
complete object. Such a message costs one comparison of memory and is not decoded, parsed, digested or counted again.
If a guess fails, one message is parsed and looked up by its bytes, and guessing continues after it. Nothing is
shared by two tenants, so that no timing tells one of them what another has sent. `SPAN_LENGTH`
messages that stood side by side twice form a span. The bytes of a span are joined and compared at once, because copying
them takes less time than a step for each message.

Eviction is second-chance: the oldest message is moved to the end if it was used since it was last the oldest, and
dropped otherwise, until the size fits. A use therefore costs only a mark, and one mark for a whole span. References to
the next message are weak, so that a dropped message is not kept alive by its neighbours, and a span is dissolved when
the first of its messages is dropped. Nothing here is thread-safe: an app has one cache, on its event loop.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from proxy.request.bounds import Tally, decode_object
from proxy.request.envelope import Envelopes
from proxy.runtime.lru import Lru
from strategies.core.digest import message_digest
from strategies.core.parsing import loads
from strategies.core.transcript import Message

if TYPE_CHECKING:
    from proxy.request.prefix_cache import CachedPrefix

MOST_BYTES = 16 * 1024 * 1024
MOST_TENANTS = 10_000
"""The most tenants whose first message is remembered; of any other the first message is parsed."""
LARGEST_SHARE = 16
"""A message that would take more than 1 / LARGEST_SHARE of the cache is not kept."""
ENTRY_BYTES = 1_250
"""About the bytes of memory that a kept message takes besides its own."""
SPAN_LENGTH = 32
"""Messages in a span: few enough that joining them in vain costs little."""
MOST_COST_IN_SPAN = 16 * 1024
"""The largest `cost` of a message in a span; for larger messages the comparison takes the time, not the step."""

_IS_TEXT = attrgetter("is_text")
TURN_BYTES = 128 * 1024
"""Bytes of new messages that are parsed in one turn of the event loop, which takes about two milliseconds."""
_VALUE_BYTES = 100
"""Bytes of text that take as long to parse as one value."""
_JOINT = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_SPACE = re.compile(rb"[ \t\n\r]*")


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
        return self.span is None and 0 < self.cost <= MOST_COST_IN_SPAN

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


class ElementArray(NamedTuple):
    """The elements of an array that was read.

    `singles` are the elements that are in none of the `spans`. `end` is the index just after the last element and the
    white space that follows it.
    """

    elements: list[Element]
    singles: list[Element]
    spans: list[Span]
    end: int


class MessageCache:
    """The messages that were read before, up to about `most_bytes` of memory, and the `envelopes` around them."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.envelopes = Envelopes()
        self._most = most_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, bytes], Element] = OrderedDict()
        self._first: Lru[str, ref[Element]] = Lru(MOST_TENANTS)
        self._body_number = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """About the bytes of memory that the kept messages take."""
        return self._size

    def read_array(self, data: bytes, at: int, tally: Tally, owner: str) -> Generator[None, None, ElementArray]:
        """Reads a tenant's array of messages, whose first element stands at `at`; yields between turns of the loop.

        Raises `ValueError` for anything but messages, and `BodyTooLarge` if the tally's bounds are exceeded.
        """
        self._body_number += 1
        first = self._match(data, at, self._first.get(owner)) or self._parse(data, at, 0, tally, owner)
        self._first.put(owner, ref(first))
        array = ElementArray([first], [first], [], at)
        at += len(first.data)
        turn_ends = TURN_BYTES
        while joint := _JOINT.match(data, at):
            end = self._match_successors(data, at, joint[0], array)
            if end == at:
                element = self._parse(data, joint.end(), len(array.elements), tally, owner)
                array.elements[-1].successor = ref(element)
                array.elements.append(element)
                array.singles.append(element)
                end = joint.end() + len(element.data)
                turn_ends -= end - at
            at = end
            tally.check_messages(len(array.elements))
            if turn_ends < tally.values * _VALUE_BYTES:
                turn_ends = TURN_BYTES + tally.values * _VALUE_BYTES
                yield
        space = _SPACE.match(data, at)
        return array._replace(end=space.end() if space else at)

    def _match(self, data: bytes, at: int, guess: ref[Element] | None) -> Element | None:
        """The guessed element, if it still exists and its bytes stand at `at`."""
        element = guess() if guess is not None else None
        return element if element is not None and data.startswith(element.data, at) else None

    def _parse(self, data: bytes, at: int, index: int, tally: Tally, owner: str) -> Element:
        """The element at `at`: the one in the cache if it has the same bytes."""
        value, text = decode_object(data, at, f"messages[{index}]", tally)
        if not isinstance(value, dict) or not isinstance(value.get("role"), str):
            raise ValueError("no message with a role")  # noqa: TRY004
        return self._kept.get((owner, text)) or Element(text, value, owner)

    def _match_successors(self, data: bytes, at: int, joint: bytes, array: ElementArray) -> int:
        """Adds to the array the expected successors of its last element, as long as their bytes stand in `data`.

        Returns the index just after the last one.
        """
        starts, width, joinable = data.startswith, len(joint), 0
        elements, singles = array.elements, array.singles
        guess = elements[-1].successor
        while guess is not None:
            element = guess()
            if element is None or not starts(joint, at):
                break
            span = element.span
            if span and span.elements[0] is element and starts(text := joint.join(span.texts), at + width):
                elements += span.elements
                array.spans.append(span)
                span.last_used = self._body_number
                at += width + len(text)
                joinable = 0
            elif starts(element.data, at + width):
                elements.append(element)
                singles.append(element)
                at += width + len(element.data)
                joinable = joinable + 1 if element.can_join_span else 0
            else:
                break
            if joinable == SPAN_LENGTH:
                Span.bind(elements[-SPAN_LENGTH:])
                joinable = 0
            guess = elements[-1].successor
        return at

    def keep(self, elements: Iterable[Element]) -> None:
        """Adds elements to the cache or marks them as used now; `read_array` has already marked those in spans."""
        for element in elements:
            if element.cost:
                element.last_used = self._body_number
            elif other := self._kept.get((element.owner, element.data)):
                other.last_used = self._body_number
            else:
                self._add(element)
        while self._size > self._most:
            self._evict_or_spare_oldest()

    def _add(self, element: Element) -> None:
        cost = _cost(element)
        if cost <= self._most // LARGEST_SHARE:
            self._kept[element.owner, element.data] = element
            element.cost, element.last_checked = cost, self._body_number
            self._size += cost

    def _evict_or_spare_oldest(self) -> None:
        """Drops the oldest element, or moves it to the end if it was used since it was last the oldest."""
        key, oldest = self._kept.popitem(last=False)
        if max(oldest.last_used, oldest.span.last_used if oldest.span else 0) > oldest.last_checked:
            oldest.last_checked, self._kept[key] = self._body_number, oldest
            # A prefix refers to all its elements and would keep those alive that were dropped.
            oldest.prefixes = tuple(each for each in oldest.prefixes if each.is_intact)
        else:
            self._size -= oldest.cost
            # A prefix refers to its own last element.
            oldest.cost, oldest.prefixes = 0, ()
            if oldest.span:
                oldest.span.dissolve()  # it refers to all its elements


def are_text(elements: Iterable[Element | Span]) -> bool:
    """Whether all of them are text only; of a picture, for example, the bytes do not bound the tokens."""
    return False not in map(_IS_TEXT, elements)


def _cost(element: Element) -> int:
    """About the bytes of memory that an element takes; its message has the arguments of its calls a second time."""
    message = next(iter(element.messages.values()), None)
    calls = sum(len(call.arguments) for call in message.calls) if message else 0
    return len(element.data) + calls + ENTRY_BYTES


def _is_text(content: object) -> bool:
    """Whether a message's content is text only, so that its bytes bound its tokens."""
    if not isinstance(content, list):
        return True
    return all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in content)
