"""Builds the transcript of a request and counts its tokens.

What is read from a message depends on its bytes alone and is cached with them (`proxy/request/message_cache.py`), so
that a turn costs its new messages only. Digests and counts are cached for longer, by a hash of the bytes and without
any text, because they are expensive and small; they too are kept for each tenant alone. New messages that are long are
counted outside of the event loop. If the length of the body already proves that it fits, nothing is tokenized and the
counts are estimates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.calibration.features import Features
from proxy.request.elements import CachedPrefix, CountedTranscript, Element
from proxy.request.envelope import COUNTED_MEMBERS
from proxy.request.message_cache import MessageCache
from proxy.request.prefix_cache import end_of_systems, find_prefix, store_prefix
from proxy.request.wire import Body
from proxy.runtime.lru import Lru
from proxy.tokens.counter import Counter, CountingPool
from strategies.core.messages import Message, Reader
from strategies.core.transcript import Transcript

BYTES_PER_TOKEN = 4
_MAX_COUNTS = 20_000
_MAX_OVERHEADS = 256
_BATCH = 100
"""New messages that are read in one turn of the event loop, which takes about 1.5 milliseconds."""
BY_LENGTH = "length"
"""The name of the counter whose counts are estimates by length."""
_KEY_BYTES = 16


class CachedCount(NamedTuple):
    """What is kept of a message when its bytes are no longer in the message cache."""

    digest: bytes
    tokens: int


class Measured(NamedTuple):
    """A transcript with its counts."""

    transcript: Transcript
    overhead: int
    """Tokens of tools and framing."""
    exact: bool
    """Whether a tokenizer made the counts; false for estimates."""
    restored: int = 0
    """Tokens of the messages that the client did not send and that were put back from the store."""
    counted_by: str = ""
    """The name of the counter."""
    outside_digest: str = ""
    """A digest, in hex, of the members besides `messages` that were counted; "" if there are none."""
    features: Features | None = None
    """The features of the transcript's chain, for calibration; None if they were not computed."""

    @property
    def tokens(self) -> int:
        """Tokens of the request as the client sent it, without messages that were put back."""
        return self.transcript.tokens + self.overhead - self.restored


class _Split(NamedTuple):
    """The messages of a body: the `systems` at the head, the `others`, and the cached `prefix` of those."""

    systems: Sequence[Element]
    others: Sequence[Element]
    prefix: CachedPrefix | None

    @classmethod
    def of(cls, body: Body, counted_by: str) -> _Split:
        """The messages of a body, with the prefix that `counted_by` has counted."""
        head = end_of_systems(body.elements)
        others = body.elements[head:]
        return cls(body.elements[:head], others, find_prefix(others, counted_by))

    @property
    def later(self) -> Sequence[Element]:
        """The others after the prefix."""
        return self.others[len(self.prefix.elements) :] if self.prefix else self.others

    @property
    def outside_prefix(self) -> Sequence[Element]:
        """All elements that are not in the prefix."""
        return (*self.systems, *self.later)


class Measurer:
    """Reads and counts messages; one per app. Messages are cached in `cache`, and the last `most_counts` counts."""

    def __init__(
        self, reader: Reader, pool: CountingPool, cache: MessageCache | None = None, most_counts: int = _MAX_COUNTS
    ) -> None:
        self._reader = reader
        self._pool = pool
        self._cache = MessageCache() if cache is None else cache
        self._counts: Lru[bytes, CachedCount] = Lru(most_counts)
        self._overheads: Lru[bytes, int] = Lru(_MAX_OVERHEADS)

    async def measure(self, body: Body, counter: Counter) -> Measured:
        """The transcript, each message counted by the counter."""
        name = counter.cache_key
        split = _Split.of(body, name)
        new = [each for each in split.outside_prefix if name not in each.messages]
        read = dict(zip(map(id, new), await self._read_messages(new, counter), strict=True))
        transcript, features = self._build(body, split, name, lambda each: read.get(id(each)) or each.messages[name])
        digest = body.envelope.outside_digest
        overhead = await self._overhead(digest, body, transcript, counter)
        return Measured(transcript, overhead, counter.exact, 0, name, digest.hex(), features)

    def estimate(self, body: Body) -> Measured:
        """The transcript with counts by length, for a body that needs no better ones."""
        split = _Split.of(body, BY_LENGTH)
        transcript, features = self._build(
            body, split, BY_LENGTH, lambda each: each.messages.get(BY_LENGTH) or self._estimated(each)
        )
        overhead = max(body.size // BYTES_PER_TOKEN - transcript.tokens, 3)
        return Measured(transcript, overhead, False, 0, BY_LENGTH, body.envelope.outside_digest.hex(), features)

    def _build(
        self, body: Body, split: _Split, counted_by: str, message_of: Callable[[Element], Message]
    ) -> CountedTranscript:
        """The transcript of a body; `message_of` reads elements outside of the prefix. Caches elements and prefix."""
        systems, later = list(map(message_of, split.systems)), list(map(message_of, split.later))
        self._cache.keep(body.singles)
        store_prefix(split.others, counted_by, split.prefix)
        if split.prefix is None:
            return CountedTranscript.of([*systems, *later])
        return split.prefix.counted.followed(later).led_by(systems)

    async def _read_messages(self, elements: Sequence[Element], counter: Counter) -> list[Message]:
        """Reads the messages of elements, and counts those whose bytes were not counted before."""
        keys = [_hash(each.data, counter.cache_key, counter.owner) for each in elements]
        # Looked up now: other requests, and this one itself, may push an entry out before its turn comes.
        cached = {key: count for key in keys if (count := self._counts.get(key)) is not None}
        uncounted = {key: each for key, each in zip(keys, elements, strict=True) if key not in cached}
        counts = await self._pool.messages(counter, [each.value for each in uncounted.values()])
        tokens = dict(zip(uncounted, counts, strict=True))
        messages: list[Message] = []
        for start in range(0, len(elements), _BATCH):
            if start:
                await asyncio.sleep(0)  # lets other requests run while a long history is read
            batch = zip(elements[start : start + _BATCH], keys[start : start + _BATCH], strict=True)
            messages += [self._read_message(each, key, counter, cached.get(key) or tokens[key]) for each, key in batch]
        return messages

    def _read_message(self, element: Element, key: bytes, counter: Counter, count: CachedCount | int) -> Message:
        tokens, digest = (count, None) if isinstance(count, int) else (count.tokens, count.digest)
        message = self._reader.read_bytes(element.data, element.value, tokens, digest)
        self._counts.put(key, CachedCount(message.digest, message.tokens))
        element.set_message(counter.cache_key, message)
        return message

    def _estimated(self, element: Element) -> Message:
        """The message of an element, its tokens estimated by its length."""
        message = self._reader.read_bytes(element.data, element.value, len(element.data) // BYTES_PER_TOKEN + 1)
        element.set_message(BY_LENGTH, message)
        return message

    async def _overhead(self, outside_digest: bytes, body: Body, transcript: Transcript, counter: Counter) -> int:
        """Tokens of the request besides its messages, counted once for the same tools."""
        key = _hash(outside_digest, f"{bool(transcript.systems)} {counter.cache_key}", counter.owner)
        tokens = self._overheads.get(key)
        if tokens is None:
            chars = sum(len(body.raw_value(key)) for key in COUNTED_MEMBERS)
            tokens = await self._pool.overhead(counter, _counted_document(body, transcript), chars)
        self._overheads.put(key, tokens)
        return tokens


def _hash(data: bytes, name: str, owner: str) -> bytes:
    return blake2b(data, digest_size=_KEY_BYTES, key=f"{owner} {name}".encode()[:64]).digest()


def _counted_document(body: Body, transcript: Transcript) -> Mapping[str, Any]:
    """The members that are counted as overhead; of the messages only whether there is a system message matters."""
    systems = [{"role": "system"}] if transcript.systems else []
    return {**{key: body.get(key) for key in COUNTED_MEMBERS if key in body.members}, "messages": systems}


def fits_by_length(body: Body, tokens: int) -> bool:
    """Whether the bytes alone prove that a body has at most `tokens`: no tokenizer makes more tokens than bytes."""
    return body.size <= tokens and not body.supplied_bytes and body.is_text
