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
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from proxy.request.bounds import Tally, decode_object
from proxy.request.elements import Element, Span
from proxy.request.envelope import Envelopes
from proxy.runtime.lru import Lru

if TYPE_CHECKING:
    pass

MAX_BYTES = 16 * 1024 * 1024
MAX_TENANTS = 10_000
"""The most tenants whose first message is remembered; of any other the first message is parsed."""
LARGEST_SHARE = 16
"""A message that would take more than 1 / LARGEST_SHARE of the cache is not kept."""
ENTRY_BYTES = 1_250
"""About the bytes of memory that a kept message takes besides its own."""
SPAN_LENGTH = 32
"""Messages in a span: few enough that joining them in vain costs little."""

TURN_BYTES = 128 * 1024
"""Bytes of new messages that are parsed in one turn of the event loop, which takes about two milliseconds."""
_VALUE_BYTES = 100
"""Bytes of text that take as long to parse as one value."""
_JOINT = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_SPACE = re.compile(rb"[ \t\n\r]*")


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

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self.envelopes = Envelopes()
        self._most = most_bytes
        self._size = 0
        self._kept: OrderedDict[tuple[str, bytes], Element] = OrderedDict()
        self._first: Lru[str, ref[Element]] = Lru(MAX_TENANTS)
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


def _cost(element: Element) -> int:
    """About the bytes of memory that an element takes; its message has the arguments of its calls a second time."""
    message = next(iter(element.messages.values()), None)
    calls = sum(len(call.arguments) for call in message.calls) if message else 0
    return len(element.data) + calls + ENTRY_BYTES
