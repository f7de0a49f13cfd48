"""From the bytes of a request to a measured transcript.

A message's digest and count depend on its bytes alone, so both are kept by a hash of the bytes: a turn costs its
new messages only. The cache holds no text. Messages that are new are counted off the event loop when they are
long. Where the body's length proves that it fits anyway, nothing is tokenized and the counts are estimates.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.tokens.counter import Counter, CountingPool
from proxy.wire import Body, Element
from strategies.core.transcript import Message, Reader, Transcript

BYTES_PER_TOKEN = 4
_MOST_ENTRIES = 50_000


class Known(NamedTuple):
    """What is kept of a message that was seen."""

    digest: bytes
    tokens: int


class Measured(NamedTuple):
    """A transcript with its counts; `overhead` are the tokens of tools and framing.

    `restored` are the tokens of messages that the client did not send, put back from the store.
    """

    transcript: Transcript
    overhead: int
    exact: bool
    restored: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the request as the client sent it, without messages that were put back."""
        return self.transcript.tokens + self.overhead - self.restored


class Measurer:
    """Reads and counts messages; one per app."""

    def __init__(self, reader: Reader, pool: CountingPool) -> None:
        self._reader = reader
        self._pool = pool
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    async def measure(self, body: Body, counter: Counter) -> Measured:
        """The transcript with a count for each message."""
        keys = [_key(element, counter) for element in body.elements]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        counts = await self._pool.messages(counter, [body.elements[i].value for i in new])
        fresh = dict(zip(new, counts, strict=True))
        messages = [self._message(body.elements[i], key, fresh.get(i)) for i, key in enumerate(keys)]
        self._forget()
        return Measured(Transcript.of(messages), counter.overhead(_request(body)), counter.exact)

    async def restore(self, measured: Measured, raws: Sequence[str], *, kept_first: bool, counter: Counter) -> Measured:
        """The transcript with the messages that the client has dropped, in front or behind its first one."""
        elements = [Element(json.loads(raw), raw) for raw in raws]
        counts = await self._pool.messages(counter, [each.value for each in elements])
        messages = [self._reader.read(each.raw, each.value, n) for each, n in zip(elements, counts, strict=True)]
        sent, at = measured.transcript, 1 if kept_first else 0
        systems = tuple((place + len(messages) if place > at else place, each) for place, each in sent.systems)
        chain = (*sent.chain[:at], *messages, *sent.chain[at:])
        return measured._replace(
            transcript=Transcript(chain, systems), restored=sum(message.tokens for message in messages)
        )

    def estimate(self, body: Body) -> Measured:
        """The transcript with counts by length, for a body that needs no better ones."""
        messages = [
            self._reader.read(each.raw, each.value, len(each.raw) // BYTES_PER_TOKEN + 1) for each in body.elements
        ]
        transcript = Transcript.of(messages)
        rest = max(body.size // BYTES_PER_TOKEN - transcript.tokens, 3)
        return Measured(transcript, rest, False)

    def _message(self, element: Element, key: bytes, tokens: int | None) -> Message:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return self._reader.read(element.raw, element.value, known.tokens, known.digest)
        if tokens is None:
            raise RuntimeError("a message that is not known was not counted")
        message = self._reader.read(element.raw, element.value, tokens)
        self._known[key] = Known(message.digest, tokens)
        return message

    def _forget(self) -> None:
        while len(self._known) > _MOST_ENTRIES:
            self._known.popitem(last=False)


def _key(element: Element, counter: Counter) -> bytes:
    data = element.raw.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=16, key=counter.cache_key.encode()[:64]).digest()


def _request(body: Body) -> Mapping[str, Any]:
    """The parsed request; of its messages only the presence of a system message is read."""
    return {**body.values, "messages": [each.value for each in body.elements]}


def fits_by_length(body: Body, tokens: int) -> bool:
    """Whether the bytes alone prove at most `tokens`: no tokenizer makes more tokens than bytes."""
    return (
        body.size <= tokens and not body.supplied and all(_is_text(each.value.get("content")) for each in body.elements)
    )


def _is_text(content: object) -> bool:
    """Whether a content has nothing whose tokens its bytes do not bound, such as a picture."""
    if not isinstance(content, list):
        return True
    return all(isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text") for part in content)
