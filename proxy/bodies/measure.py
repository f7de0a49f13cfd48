"""Builds the transcript of a request and counts its tokens.

The reading of a message depends only on its bytes and is cached with them (`proxy/bodies/message_cache.py`), so a
turn costs only its new messages. Digests and counts are expensive and small, so they are cached for longer, by a hash
of the bytes and without any text. No tenant gets what was cached for another. Long new messages are read and counted
outside of the event loop. If the length of the body already proves that it fits, nothing is tokenized and the counts
are estimates.

The transcript of a conversation, with its digests and sums, is cached as a prefix. A prefix leaves out the last
message, because clients rewrite it, and the leading system messages, because agents put the time of day into them. It
is found by its last element, which is searched for backwards from the end of a request. A conversation has one prefix
for each token counter, and it grows with every request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.bodies.message_cache import MAX_BYTES, Element, MessageCache
from proxy.bodies.wire import Body
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import LARGE, load_of, next_step, offload
from proxy.tokens.counter import Counted, Counter, CountingPool
from strategies.core.messages import Message, Reader
from strategies.core.parsing import objects_in, word
from strategies.core.transcript import Transcript

BYTES_PER_TOKEN = 4
LEAST = 8  # characters for each of which a text has a token at least, if there was no time to count it
_MAX_COUNTS = 20_000
_MAX_OVERHEADS = 256
LENGTH_ESTIMATE = "length"  # the name of the counter whose counts are estimates by length
STEP = 1_000  # messages for each of which the event loop does a little before other work may run
SAMPLED, SAMPLE = 20, 4_096  # one in so many parts of so many bytes is counted for a sample
SURELY = 0.6  # the share of the lowest mark that a sample must be below
MIN_MESSAGES = 16  # minimum number of messages for which a prefix saves anything
MAX_NEW_MESSAGES = 64  # how far back from the end of a request to look for a prefix, in messages. One turn adds fewer.
_hash = partial(blake2b, digest_size=16)
_VALUE = attrgetter("value")
_DEFERRED, _REFERENCE = "defer_loading", b"tool_reference"
_REFERRED = re.compile(rb'"tool_name"\s*:\s*"([^"\\]+)"')


_Known = tuple[bytes | None, tuple[int, bool]]
"""The digest of a message, if it is known, its tokens, and whether it is unpriced."""


class CachedPrefix(NamedTuple):
    elements: Sequence[Element]
    transcript: Transcript
    size: int


class Precision(StrEnum):
    """How the tokens of a request are known."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    INEXACT = "inexact"  # counted, without what has no published price


class Measured(NamedTuple):
    """A list with its counts."""

    transcript: Transcript
    tokens: int  # of the whole request
    overhead: int  # tokens of tools and framing
    precision: Precision
    counted_by: str = ""
    outside_digest: str = ""
    """A digest, in hex, of the members besides `messages` that were counted; "" if there are none."""
    is_sampled: bool = False  # whether a sample, not a proof, says that it is far below every mark

    @classmethod
    def of(
        cls, transcript: Transcript, overhead: int, precision: Precision, counted_by: str = "", outside_digest: str = ""
    ) -> Measured:
        return cls(transcript, transcript.tokens + overhead, overhead, precision, counted_by, outside_digest)

    def having(self, transcript: Transcript) -> Measured:
        return self._replace(transcript=transcript, tokens=transcript.tokens + self.overhead)


class Prefixes:
    """The cached prefixes. Their elements take at most about `max_bytes`; most are in the message cache too."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: Lru[tuple[Element, str], CachedPrefix] = Lru(max_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, elements: Sequence[Element], counted_by: str) -> CachedPrefix | None:
        """The prefix of a message list that has no leading system messages; None if there is none."""
        if len(elements) <= MIN_MESSAGES:
            return None
        for element in reversed(elements[-MAX_NEW_MESSAGES:]):
            if prefix := self._kept.use((element, counted_by)):
                return prefix if prefix.elements == elements[: len(prefix.elements)] else None
        return None

    def store(
        self,
        elements: Sequence[Element],
        counted_by: str,
        found: CachedPrefix | None,
        begun: Transcript | None = None,
    ) -> None:
        """Stores the prefix of a message list, all elements but the last, in place of the one that was `found`.

        `begun` is its transcript, if it was made already.
        """
        start, end = len(found.elements) if found else 0, len(elements) - 1
        if end < MIN_MESSAGES or start >= end:
            return
        kept = [each for each in elements[start:end] if each.cost and counted_by in each.messages]
        if len(kept) < end - start:
            return
        messages = [each.messages[counted_by] for each in kept]
        size = sum(element.cost for element in elements[start:end])
        if found is None:
            transcript = begun or Transcript.of(messages)
        else:
            transcript, size = found.transcript.extended_by(messages), found.size + size
            self._kept.forget((found.elements[-1], counted_by))
        self._kept.put((elements[end - 1], counted_by), CachedPrefix(elements[:end], transcript, size), size)


class _Split(NamedTuple):
    """The messages of a body: the leading `systems`, the `others`, and those of them after the cached `prefix`."""

    systems: Sequence[Element]
    others: Sequence[Element]
    prefix: CachedPrefix | None
    later: Sequence[Element]

    def unread(self, counted_by: str) -> Sequence[Element]:
        """The elements to read, each once, though it may stand in the list twice."""
        return [each for each in dict.fromkeys((*self.systems, *self.later)) if counted_by not in each.messages]


class Measurer:
    """Reads and counts messages; one per app. It keeps messages in `cache`, and the last `most_counts` counts."""

    def __init__(
        self, reader: Reader, pool: CountingPool, cache: MessageCache | None = None, most_counts: int = _MAX_COUNTS
    ) -> None:
        self._reader = reader
        self._pool = pool
        self._cache = MessageCache() if cache is None else cache
        self.prefixes = Prefixes()
        self._counts: Lru[bytes, _Known] = Lru(most_counts)
        """Digest and count of each message, even if its bytes are no longer in the message cache."""
        self._overheads: Lru[bytes, Counted] = Lru(_MAX_OVERHEADS)

    async def measure(self, body: Body, counter: Counter) -> Measured:
        name = counter.cache_key
        split = self._split(body, name)
        read = await self._read_counted(split.unread(name), counter)
        transcript = await self._build(body, split, name, read)
        digest = body.envelope.outside_digest
        overhead, unpriced = await self._overhead(digest, body, transcript, counter)
        precision = Precision.INEXACT if unpriced or transcript.unpriced else Precision.EXACT
        precision = precision if counter.exact else Precision.ESTIMATE
        return Measured.of(transcript, overhead, precision, name, digest.hex())

    async def seems_to_fit(self, body: Body, tokens: int, counter: Counter) -> bool:
        """Whether a sample of a long new list says that it has well below `tokens`; False for any other list.

        Both the sample and the length must say so, because views are made of counts by length then.
        """
        elements, most = body.elements, int(tokens * SURELY)
        # Of a list that is known the middle was counted before.
        is_known = counter.cache_key in elements[len(elements) // 2].messages
        is_whole = len(body.data) == body.size and body.is_text
        if is_known or not is_whole or body.size // BYTES_PER_TOKEN + len(elements) > most:
            return False
        places = range(0, body.size, SAMPLED * SAMPLE)
        sample = b"".join([body.data[at : at + SAMPLE] for at in places])
        found = await asyncio.to_thread(counter.text, sample.decode("utf-8", "ignore"))
        return found * body.size // len(sample) <= most

    async def estimate(self, body: Body) -> Measured:
        """The transcript with counts by length, for a body that needs no better ones."""
        split = self._split(body, LENGTH_ESTIMATE)
        new = split.unread(LENGTH_ESTIMATE)
        counts = [(None, (len(element.data) // BYTES_PER_TOKEN + 1, False)) for element in new]
        transcript = await self._build(body, split, LENGTH_ESTIMATE, await self._read(new, LENGTH_ESTIMATE, counts))
        overhead = max(body.size // BYTES_PER_TOKEN - transcript.tokens, 3)
        return Measured.of(
            transcript, overhead, Precision.ESTIMATE, LENGTH_ESTIMATE, body.envelope.outside_digest.hex()
        )

    def _split(self, body: Body, counted_by: str) -> _Split:
        head = end_of_systems(body.elements)
        others = body.elements[head:]
        prefix = self.prefixes.find(others, counted_by) if len(others) > MIN_MESSAGES else None
        later = others[len(prefix.elements) :] if prefix else others
        return _Split(body.elements[:head], others, prefix, later)

    async def _build(self, body: Body, split: _Split, counted_by: str, new: Mapping[int, Message]) -> Transcript:
        """The transcript of a body; `new` are the messages just read, by the id of their element. Caches all of it."""
        if len(new) > LARGE:
            await next_step()  # each of the two halves takes long for thousands of messages
        elements = (*split.systems, *split.later)
        messages = [new.get(id(element)) or element.messages[counted_by] for element in elements]
        head = len(split.systems)
        if len(new) > STEP:
            for at in range(0, len(body.elements), STEP):
                self._cache.keep(body.elements[at : at + STEP])
                await next_step()
        else:
            self._cache.keep(body.elements)
        if len(new) > LARGE:
            await next_step()
        if split.prefix is None and len(split.others) > STEP:
            begun = await asyncio.to_thread(_summed, messages[head:-1])
            self.prefixes.store(split.others, counted_by, None, begun)
            return begun.extended_by(messages[-1:]).with_leading_systems(messages[:head])
        if len(split.others) > MIN_MESSAGES:
            self.prefixes.store(split.others, counted_by, split.prefix)
        if split.prefix is None:
            return Transcript.of(messages)
        return split.prefix.transcript.extended_by(messages[head:]).with_leading_systems(messages[:head])

    async def _read_counted(self, elements: Sequence[Element], counter: Counter) -> Mapping[int, Message]:
        """Reads the messages of elements, and counts those whose bytes were not counted before."""

        def keyed() -> tuple[list[bytes], list[Mapping[str, Any]]]:
            owned = _key(counter.cache_key, counter.owner)
            return [_hash(element.data, key=owned).digest() for element in elements], list(map(_VALUE, elements))

        keys, values = await offload(load_of(elements), keyed)
        # Looked up now: other requests, and this one itself, may push an entry out before its turn comes.
        known: dict[bytes, _Known] = {key: count for key in keys if (count := self._counts.get(key)) is not None}
        uncounted = {key: value for key, value in zip(keys, values, strict=True) if key not in known}
        counts = await self._pool.messages(counter, list(uncounted.values()))
        # From the end: the oldest may have no count.
        known.update(zip(reversed(uncounted), zip(repeat(None), reversed(counts)), strict=False))
        read = await self._read(elements, counter.cache_key, list(map(known.get, keys)))
        for number, (key, element) in enumerate(zip(keys, elements, strict=True), 1):
            if number % STEP == 0:
                await next_step()
            if key in known:
                self._counts.put(key, (read[id(element)].digest, known[key][1]))
        return read

    async def _read(
        self, elements: Sequence[Element], counted_by: str, known: Sequence[_Known | None]
    ) -> Mapping[int, Message]:
        """The messages of elements, by their ids. Those that were not counted are not kept: a later request does it."""

        def read() -> dict[int, Message]:
            messages = {}
            for element, count in zip(elements, known, strict=True):
                digest, (tokens, unpriced) = count or (None, (_least(element), True))
                facts = element.data, element.value, tokens, element.endpoint.dialect, digest
                message = messages[id(element)] = self._reader.read(*facts, unpriced=unpriced)
                element.set_message(counted_by, message if count else None)
            return messages

        return await offload(load_of(elements), read)

    async def _overhead(self, outside_digest: bytes, body: Body, transcript: Transcript, counter: Counter) -> Counted:
        """The count of the request besides its messages, made once for the same tools."""
        is_deferred = _DEFERRED in body.envelope.raw_value("tools")
        loaded = await offload(load_of(body.elements), _loaded_tools, body) if is_deferred else ()
        name = f"{bool(transcript.systems)} {sorted(loaded)} {counter.cache_key}"
        key = _hash(outside_digest, key=_key(name, counter.owner)).digest()
        count = self._overheads.get(key)
        if count is None:
            counted = {name: body.values[name] for name in body.endpoint.counted_members if name in body.values}
            chars, has_system = body.envelope.counted_length, bool(transcript.systems)
            count = await self._pool.overhead(counter, counted, chars, has_system=has_system, loaded=loaded)
        self._overheads.put(key, count)
        return count


def end_of_systems(elements: Sequence[Element]) -> int:
    for index, element in enumerate(elements):
        if element.role not in element.endpoint.dialect.system_roles:
            return index
    return len(elements)


def _least(element: Element) -> int:
    """The tokens that a message has at least. Not by its bytes: a token of Russian has nine, and escaped 25."""
    text = element.data.decode("utf-8", "ignore") if element.is_text else ""
    return max(len(text) - 5 * text.count("\\u"), 0) // LEAST  # an escaped character stands there as six


def _summed(messages: Sequence[Message]) -> Transcript:
    """The transcript of messages, with its sums, which take a microsecond for each."""
    return Transcript.of(messages).having()


def _loaded_tools(body: Body) -> Collection[str]:
    """The names of tools that were not loaded at first, and that references in the transcript have loaded."""
    known = {word(tool.get("name")) for tool in objects_in(body.values.get("tools"))}
    pieces = (element.data for element in body.elements if _REFERENCE in element.data)
    found = (each for piece in pieces for each in _REFERRED.finditer(piece))
    return known.intersection(each[1].decode("utf-8", "replace") for each in found)


def _key(name: str, owner: str) -> bytes:
    return _hash(f"{owner} {name}".encode()).digest()


def fits_by_length(body: Body, tokens: int) -> bool:
    """Whether the bytes alone prove that a body has at most `tokens`: no tokenizer makes more tokens than bytes.

    A body with a supplied history is counted in any case.
    """
    return len(body.data) == body.size <= tokens and body.is_text
