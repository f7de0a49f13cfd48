"""From the bytes of a request to a measured transcript.

What is made of a message depends on its bytes alone and is kept with it (`proxy/request/message_cache.py`), so that a
turn costs its new messages only. Digests and counts are kept longer than that, by a hash of the bytes and without any
text: they are what is dear, and they are small. Messages that are new are counted off the event loop when they are
long. Where the body's length proves that it fits anyway, nothing is tokenized and the counts are estimates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.calibration.features import Features
from proxy.request.envelope import OUTSIDE
from proxy.request.message_cache import Element, MessageCache
from proxy.request.prefix_cache import CachedPrefix, Summed, beginning_of, behind_systems, remember
from proxy.request.wire import Body
from proxy.runtime.lru import Lru
from proxy.tokens.counter import Counter, CountingPool
from strategies.core.transcript import Message, Reader, Transcript

BYTES_PER_TOKEN = 4
_MOST_KNOWN = 20_000
_MOST_OVERHEADS = 256
_AT_ONCE = 100
"""New messages that are made in one turn of the event loop; about a millisecond and a half."""
BY_LENGTH = "length"
_KEY_BYTES = 16


class Known(NamedTuple):
    """What is kept of a message that was seen."""

    digest: bytes
    tokens: int


class Measured(NamedTuple):
    """A transcript with its counts; `overhead` are the tokens of tools and framing.

    `restored` are the tokens of messages that the client did not send, put back from the store. `counted_by` names what
    counted, and `outside` is a digest of what was counted besides messages, "" for nothing. `features` are what the
    tokens of the chain are made of, where that is at hand.
    """

    transcript: Transcript
    overhead: int
    exact: bool
    restored: int = 0
    counted_by: str = ""
    outside: str = ""
    features: Features | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the request as the client sent it, without messages that were put back."""
        return self.transcript.tokens + self.overhead - self.restored


class _Listed(NamedTuple):
    """A body's messages: `systems` at their head, `others`, and what is `known` of the beginning of those."""

    systems: Sequence[Element]
    others: Sequence[Element]
    known: CachedPrefix | None

    @classmethod
    def of(cls, body: Body, counted_by: str) -> _Listed:
        """Those of a body, of which what is known was made by `counted_by`."""
        head = behind_systems(body.elements)
        others = body.elements[head:]
        return cls(body.elements[:head], others, beginning_of(others, counted_by))

    @property
    def later(self) -> Sequence[Element]:
        """The others behind the beginning that is known."""
        return self.others[len(self.known.elements) :] if self.known else self.others

    @property
    def unknown(self) -> Sequence[Element]:
        """All that the beginning does not have."""
        return (*self.systems, *self.later)


class Measurer:
    """Reads and counts messages; one per app. What it has measured is kept in `seen`, of `most_known` the counts."""

    def __init__(
        self, reader: Reader, pool: CountingPool, seen: MessageCache | None = None, most_known: int = _MOST_KNOWN
    ) -> None:
        self._reader = reader
        self._pool = pool
        self._seen = MessageCache() if seen is None else seen
        self._known: Lru[bytes, Known] = Lru(most_known)
        self._overheads: Lru[bytes, int] = Lru(_MOST_OVERHEADS)

    async def measure(self, body: Body, counter: Counter) -> Measured:
        """The transcript with a count for each message."""
        name = counter.cache_key
        listed = _Listed.of(body, name)
        new = [each for each in listed.unknown if name not in each.counted]
        read = dict(zip(map(id, new), await self._read(new, counter), strict=True))
        made = self._made(body, listed, name, lambda each: read.get(id(each)) or each.counted[name])
        outside = body.envelope.outside
        overhead = await self._overhead(outside, body, made.transcript, counter)
        return Measured(made.transcript, overhead, counter.exact, 0, name, outside.hex(), made.features)

    def estimate(self, body: Body) -> Measured:
        """The transcript with counts by length, for a body that needs no better ones."""
        listed = _Listed.of(body, BY_LENGTH)
        made = self._made(body, listed, BY_LENGTH, lambda each: each.counted.get(BY_LENGTH) or self._by_length(each))
        rest = max(body.size // BYTES_PER_TOKEN - made.transcript.tokens, 3)
        outside = body.envelope.outside.hex()
        return Measured(made.transcript, rest, False, 0, BY_LENGTH, outside, made.features)

    def _made(self, body: Body, listed: _Listed, counted_by: str, message: Callable[[Element], Message]) -> Summed:
        """What is made of a body's messages; `message` gives that of an element behind what is known."""
        systems, later = list(map(message, listed.systems)), list(map(message, listed.later))
        self._seen.keep(body.alone)
        remember(listed.others, counted_by, listed.known)
        return listed.known.made.followed(later).led_by(systems) if listed.known else Summed.of([*systems, *later])

    async def _read(self, elements: Sequence[Element], counter: Counter) -> list[Message]:
        """The messages of elements that no message was made of; only what is not known by its hash is counted."""
        keys = [_hash(each.data, counter.cache_key) for each in elements]
        # Taken out now: other requests, and this one itself, may have it forgotten before its turn comes.
        known = {key: found for key in keys if (found := self._known.get(key)) is not None}
        uncounted = {key: each for key, each in zip(keys, elements, strict=True) if key not in known}
        counts = await self._pool.messages(counter, [each.value for each in uncounted.values()])
        tokens = dict(zip(uncounted, counts, strict=True))
        messages: list[Message] = []
        for start in range(0, len(elements), _AT_ONCE):
            if start:
                await asyncio.sleep(0)  # a long history is not all that others wait for
            piece = zip(elements[start : start + _AT_ONCE], keys[start : start + _AT_ONCE], strict=True)
            messages += [self._message(each, key, counter, known.get(key) or tokens[key]) for each, key in piece]
        return messages

    def _message(self, element: Element, key: bytes, counter: Counter, known: Known | int) -> Message:
        tokens, digest = (known, None) if isinstance(known, int) else (known.tokens, known.digest)
        message = self._reader.read_bytes(element.data, element.value, tokens, digest)
        self._known.put(key, Known(message.digest, message.tokens))
        element.settle(counter.cache_key, message)
        return message

    def _by_length(self, element: Element) -> Message:
        message = self._reader.read_bytes(element.data, element.value, len(element.data) // BYTES_PER_TOKEN + 1)
        element.settle(BY_LENGTH, message)
        return message

    async def _overhead(self, outside: bytes, body: Body, transcript: Transcript, counter: Counter) -> int:
        """Tokens of the request besides its messages, counted once for the same tools."""
        key = _hash(outside, f"{bool(transcript.systems)} {counter.cache_key}")
        tokens = self._overheads.get(key)
        if tokens is None:
            chars = sum(len(body.written(key)) for key in OUTSIDE)
            tokens = await self._pool.overhead(counter, _outside(body, transcript), chars)
        self._overheads.put(key, tokens)
        return tokens


def _hash(data: bytes, name: str) -> bytes:
    return blake2b(data, digest_size=_KEY_BYTES, key=name.encode()[:64]).digest()


def _outside(body: Body, transcript: Transcript) -> Mapping[str, Any]:
    """What of a request is counted besides its messages; of those only the presence of a system message is read."""
    systems = [{"role": "system"}] if transcript.systems else []
    return {**{key: body.get(key) for key in OUTSIDE if key in body.members}, "messages": systems}


def fits_by_length(body: Body, tokens: int) -> bool:
    """Whether the bytes alone prove at most `tokens`: no tokenizer makes more tokens than bytes."""
    return body.size <= tokens and not body.supplied and body.is_text
