"""A cache of messages that recognises them by their bytes.

Theory of operation. A chat client sends its whole history with each request, and nearly all of it came with the request
before. The cache keeps the bytes of every message, what was read from them, and which message came next the last time.
If a new body continues with the bytes of the expected next message, it contains that message, because no longer JSON
value begins with a complete object. Such a message costs one comparison of memory and is not decoded, parsed, digested
or counted again. If the guess fails, messages are parsed and looked up by their bytes until a guess is possible again.

A long list is not compared message by message. The cache keeps the last body that began with the same two messages, and
compares all that followed them in it, but for the newest, at once (`Run`).

New messages are parsed in chunks: each chunk is decoded from UTF-8 as one text, and the event loop may run after it.
Chunks grow while all that they hold is new.

The cache drops what has been unused for longest. References to the next message are weak, so that a message does not
keep the next one alive. Tenants share nothing, so that no timing tells one of them what another has sent. Nothing here
is thread-safe: an app has one cache, on its event loop. A message longer than a chunk is parsed in a thread, which does
not touch the cache.
"""

from __future__ import annotations

import asyncio
import re
from codecs import utf_8_decode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import ref

from proxy.bodies.scanning import Envelopes, Tally
from proxy.protocols.endpoint import Endpoint
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import next_step
from strategies.core.messages import Message, message_digest
from strategies.core.parsing import STEP, decode, loads

MAX_BYTES = 16 * 1024 * 1024
MAX_TENANTS = 10_000
"""Maximum number of tenants whose first message is remembered; the first message of any other is parsed."""
MIN_RUN = 32  # messages that a list has at least if they are compared at once
_HEAD = 2  # messages that lists have in common only if they are of one conversation, as a rule
_NEWEST = 8  # messages at the end of a list that are compared one by one: clients rewrite some of them, or mark them
_RUNS = 4  # a body that would take more than 1 / _RUNS of the cache is not kept
_USES = 16  # requests, of which one marks all messages of a run as used, and the others only those around it
MIN_ENTRIES = 16  # a message that would take more than 1 / MIN_ENTRIES of the cache is not kept
ENTRY_BYTES = 1_250  # about the bytes of memory that a kept message takes besides its own

_FIRST_CHUNK = 2 * 1024
_GROWTH = 8  # how many times larger the next chunk is if one was too short, or all of it was new
_CHUNK = 16 * 1024  # bytes that are parsed before the event loop may run, in about half a millisecond
_JOINT = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_TEXT_JOINT = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_SPACE = re.compile(rb"[ \t\n\r]*")
IS_TEXT = attrgetter("is_text")


class Element:
    """One element of the list of messages: its bytes, and what was read from them."""

    __slots__ = (
        *("__weakref__", "_value", "cost", "data", "endpoint", "is_text"),
        *("messages", "owner", "role", "run", "successor"),
    )

    data: bytes
    endpoint: Endpoint
    owner: str  # whose it is: a tenant under one endpoint
    role: str
    is_text: bool  # whether its content is text only, so that its bytes bound its tokens
    messages: dict[str, Message]  # the messages read from it, by the name of the counter that counted their tokens
    successor: ref[Element] | None  # the element that came next in the last body that had both
    run: Run | None  # what came after it the last time, if it is the last of the head of a long list
    cost: int  # bytes of memory that keeping it and its run takes; 0 if it is not in the cache

    def __init__(self, data: bytes, value: Mapping[str, Any], endpoint: Endpoint, owner: str = "") -> None:
        """Raises `MalformedElement` if the value is no message."""
        self.role, self.is_text = endpoint.look(value)
        self.data = data
        self.endpoint = endpoint
        self.owner = owner
        self.messages = {}
        self.successor = self.run = None
        self.cost = 0
        self._value: Mapping[str, Any] | None = value

    @classmethod
    def of(cls, raw: str, endpoint: Endpoint, owner: str = "") -> Element:
        return cls(raw.encode("utf-8", "surrogatepass"), loads(raw), endpoint, owner)

    @property
    def raw(self) -> str:
        return self.data.decode("utf-8", "surrogatepass")

    @property
    def digest(self) -> bytes:
        message = next(iter(self.messages.values()), None)
        return message_digest(self.value, self.endpoint.dialect) if message is None else message.digest

    @property
    def value(self) -> Mapping[str, Any]:
        """Its parsed form, parsed again if `set_message` has dropped it."""
        value = self._value  # read once: a thread may drop it meanwhile
        return loads(self.raw) if value is None else value

    def set_message(self, counted_by: str, message: Message | None) -> None:
        """Keeps the message read from it, if any; drops the parsed form, which takes more memory than all the rest."""
        if message is not None:
            self.messages[counted_by] = message.lean()
        self._value = None


class Run:
    """Messages that follow the head of a list, and their bytes with all between them: a part of a body that is kept."""

    __slots__ = ("data", "elements", "size", "uses")

    def __init__(self, body: bytes, at: int, end: int, elements: Sequence[Element]) -> None:
        self.data = memoryview(body)[at:end]  # a view of the body, so that nothing is copied
        self.size = len(body)
        self.elements = elements
        self.uses = 0  # requests with it, modulo `_USES`

    def is_in(self, elements: Sequence[Element]) -> bool:
        end = _HEAD + len(self.elements)
        return len(elements) > end and elements[end - 1] is self.elements[-1]


class ElementArray(NamedTuple):
    elements: list[Element]
    end: int  # the index just after the last element and the white space that follows it


class MessageCache:
    """The messages that were read before, up to about `max_bytes` of memory, and the `envelopes` around them."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.envelopes = Envelopes()
        self.size = 0
        self._max_bytes = max_bytes
        self.kept: dict[tuple[str, bytes], Element] = {}
        self._by_use: OrderedDict[Element, None] = OrderedDict()  # the same elements, the least recently used first
        self._first: Lru[str, ref[Element]] = Lru(MAX_TENANTS)

    def __len__(self) -> int:
        return len(self.kept)

    async def read_array(self, data: bytes, at: int, tally: Tally, owner: str) -> ElementArray:
        """Reads an owner's array of messages, whose first element begins at `at`; lets the event loop run meanwhile.

        Raises `ValueError` for anything but messages, and `BodyTooLarge` if the tally's bounds are exceeded.
        """
        array, begin = ElementArray([], at), at
        guess = self._first.get(owner)
        first = guess() if guess else None
        if first is not None and data.startswith(first.data, at):
            array.elements.append(first)
            at += len(first.data)
        width, parsed = _FIRST_CHUNK, 0
        while True:
            if len(array.elements) > tally.max_messages:
                tally.refuse_messages()
            if parsed >= _CHUNK:
                parsed = 0
                await next_step()
            begun = at
            if array.elements:
                joint = _JOINT.match(data, at, at + STEP)
                if joint is None:
                    break
                end = self._match_successors(data, at, joint[0], array)
                if end > at:
                    at, width = end, _FIRST_CHUNK
                    continue
                begun = joint.end()
            end = self._parse(data, begun, width, array, tally, owner)
            parsed += max(width, end - begun)
            if end == begun and width == _CHUNK:
                end = await self._parse_long(data, begun, array, tally, owner)
            at = end if end > begun else at  # else the chunk was too short
            is_known = end > begun and array.elements[-1].successor is not None
            width = _FIRST_CHUNK if is_known else min(width * _GROWTH, _CHUNK)
        if array.elements[0] is not first or len(array.elements) >= MIN_RUN:
            self._expect(owner, data, begin, at, array.elements)
        space = _SPACE.match(data, at, at + STEP)
        return array._replace(end=space.end() if space else at)

    def _parse(self, data: bytes, at: int, width: int, array: ElementArray, tally: Tally, owner: str) -> int:
        """Adds to the array the messages that follow `at` and end within `width` bytes, up to one with a successor.

        Returns the index just after the last of them; `at` if there is none.
        """
        is_rest = at + width >= len(data)
        text, _ = utf_8_decode(data[at : at + width], "strict", is_rest)
        is_long = len(text) > tally.max_piece
        start, end, place = at, at, 0
        while True:
            if is_long:
                tally.check_piece(text, _name(array, tally), place)
            try:
                value, stop = decode(text, place)
            except ValueError:
                if is_rest and end == at:
                    raise
                return end
            element = self._add_to(array, value, text[place:stop].encode(), tally, owner)
            end = start + len(element.data)
            joint = _TEXT_JOINT.match(text, stop, stop + STEP)
            if element.successor is not None or joint is None:
                return end
            place = joint.end()
            start = end + place - stop

    async def _parse_long(self, data: bytes, at: int, array: ElementArray, tally: Tally, owner: str) -> int:
        """As `_parse`, for one message that is longer than a chunk."""
        value, read = await asyncio.to_thread(_parse_long, data, at, tally, _name(array, tally))
        self._add_to(array, value, read, tally, owner)
        return at + len(read)

    def _add_to(self, array: ElementArray, value: Any, data: bytes, tally: Tally, owner: str) -> Element:
        """Adds a parsed message to the array: the one in the cache if it has the same bytes."""
        tally.add(value, data)
        element = self.kept.get((owner, data)) or Element(data, value, tally.endpoint, owner)
        if array.elements:
            array.elements[-1].successor = ref(element)
        array.elements.append(element)
        return element

    def _match_successors(self, data: bytes, at: int, joint: bytes, array: ElementArray) -> int:
        """Adds to the array the expected successors of its last element, as long as their bytes are in `data`.

        Returns the index just after the last one.
        """
        starts, width, elements = data.startswith, len(joint), array.elements
        last = elements[-1]
        while True:
            if (run := last.run) is not None and len(elements) == _HEAD:
                if starts(run.data, at):
                    elements += run.elements
                    at += len(run.data)
                    last = elements[-1]
                else:
                    self._drop_run(last)
            guess = last.successor
            element = guess() if guess is not None else None
            if element is None or not (starts(joint, at) and starts(element.data, at + width)):
                return at
            elements.append(element)
            at += width + len(element.data)
            last = element

    def _expect(self, owner: str, data: bytes, at: int, end: int, elements: Sequence[Element]) -> None:
        """Expects the owner's next list to begin as this one, which is in `data` from `at` to `end`.

        If it is long, the body is kept for what follows the head, unless one is that does nearly as well.
        """
        self._first.put(owner, ref(elements[0]))
        if len(elements) < MIN_RUN:
            return
        first, head = elements[:_HEAD]
        known = len(head.run.elements) if head.run is not None and head.run.is_in(elements) else 0
        if len(elements) < _HEAD + known + 2 * _NEWEST or not head.cost or len(data) > self._max_bytes // _RUNS:
            return
        joint = _JOINT.match(data, at + len(first.data), at + len(first.data) + STEP)
        assert joint is not None
        for element in elements[: -_NEWEST - 1 : -1]:
            end = data.rindex(b"}", at, end - len(element.data)) + 1  # where the message before it ends
        self._drop_run(head)
        head.run = Run(data, joint.end() + len(head.data), end, elements[_HEAD:-_NEWEST])
        head.cost += len(data)
        self.size += len(data)

    def _drop_run(self, head: Element) -> None:
        if head.run is not None:
            self.size -= head.run.size
            head.cost -= head.run.size
            head.run = None

    def keep(self, elements: Sequence[Element]) -> None:
        """Adds elements to the cache, or marks them as used now."""
        use = self._by_use.move_to_end
        run = elements[_HEAD - 1].run if len(elements) >= MIN_RUN else None
        if run is not None and run.is_in(elements):
            run.uses = (run.uses + 1) % _USES
            if run.uses != 1:  # the run itself keeps the others, even if they are dropped here meanwhile
                elements = (*elements[:_HEAD], *elements[_HEAD + len(run.elements) :])
        for element in elements:
            if kept := element if element.cost else self.kept.get((element.owner, element.data)):
                use(kept)
            else:
                self._add(element)
        while self.size > self._max_bytes:
            self._drop_oldest()

    def element(self, raw: str, owner: str) -> Element | None:
        return self.kept.get((owner, raw.encode("utf-8", "surrogatepass")))

    def _add(self, element: Element) -> None:
        cost = _cost(element)
        if cost <= self._max_bytes // MIN_ENTRIES:
            self.kept[element.owner, element.data] = element
            self._by_use[element] = None
            element.cost = cost
            self.size += cost

    def _drop_oldest(self) -> None:
        element, _ = self._by_use.popitem(last=False)
        self.kept.pop((element.owner, element.data), None)
        self.size -= element.cost
        element.cost, element.run = 0, None


def _name(array: ElementArray, tally: Tally) -> str:
    return f"{tally.endpoint.list_member}[{len(array.elements)}]"


def _parse_long(data: bytes, at: int, tally: Tally, name: str) -> tuple[Any, bytes]:
    """The value that begins at `at`, and its bytes; raises `ValueError` if there is none."""
    width = _CHUNK * _GROWTH
    while True:
        is_rest = at + width >= len(data)
        text, _ = utf_8_decode(data[at : at + width], "strict", is_rest)
        if tally.check_piece(text, name, 0) or is_rest:
            value, stop = decode(text)
            return value, text[:stop].encode()
        width *= _GROWTH


def _cost(element: Element) -> int:
    """About the bytes of memory that an element takes; its message has the arguments of its calls a second time."""
    message = next(iter(element.messages.values()), None)
    calls = sum(len(call.arguments) for call in message.calls) if message else 0
    return len(element.data) + calls + ENTRY_BYTES
