"""Ranks passages by meaning too, with the vectors of an embedding model, if the settings name one.

The vectors of passages are made in the background after a reply has been sent, the newest passages first. Their cost
comes out of the session's allowance (`RequestContext.allowance_after_votes`) and is added to its totals. The vector of
a query is requested only if there are vectors to compare it with, and the settings limit how long a request waits for
it. Without it, and after any failure, passages are ranked by their words alone.

Vectors are kept in memory for the sessions that were used last, under a digest of their text, so a text that occurs
twice, or is quoted in a card, is embedded once. They have length one, in float32. Each has the signs of its numbers as
the bits of one integer. If there are many vectors, only those whose signs agree most with the query's are compared in
full.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import sqrt
from operator import mul
from typing import NamedTuple, Protocol

from proxy.asking import Caller
from proxy.asking.calls import Embedded
from proxy.runtime.lru import Lru
from proxy.sessions.recognition import Recognised
from proxy.sessions.session import Session
from proxy.settings.tables import ModelRole
from proxy.store.base import StoreKey
from strategies.core.effects import Failure
from strategies.memory.ranking import Hit, fuse, outstanding

BATCH = 64
MAX_BATCHES = 4
"""The maximum number of batches after one reply; the remaining texts follow after the next reply."""
TIMEOUT = 60.0  # seconds of a call in the background
QUERY_CHARS = 2_000
PAUSE = 600.0  # seconds without calls after an unusable answer: the endpoint or the model does not exist
MAX_TENANTS = 10_000
MAX_BYTES = 64 * 1024 * 1024
MIN_BYTES = 64 * 1024  # counted for every session, so that sessions without vectors are bounded too
FLOAT_BYTES = 4
COMPARED = 200
"""How many vectors are compared in full; it takes about ten milliseconds in a thread."""

_UNUSABLE = ("http-error", "unreadable")

_log = logging.getLogger(__name__)


class Vector(NamedTuple):
    """A vector of length one, and a bit for each number that is positive."""

    values: array[float]
    signs: int


@dataclass(slots=True, eq=False)
class SessionVectors:
    """The vectors of one session.

    `tokens` is what they have cost, `unreported` the part of it that is not in the session's totals yet, and `size`
    about how many bytes they take.
    """

    tokens: int = 0
    unreported: int = 0
    size: int = MIN_BYTES
    _known: dict[bytes, Vector] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not self._known

    def get(self, text: str) -> Vector | None:
        return self._known.get(_digest(text))

    def unknown(self, texts: Iterable[str]) -> list[str]:
        """The texts that have no vector yet, each once."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._known]

    def put(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Keeps the vectors of texts that have none. May run in a thread."""
        for text, values in zip(texts, vectors, strict=True):
            self._known[_digest(text)] = vector_of(values)
            self.size += len(values) * FLOAT_BYTES

    def closeness(self, query: Vector, hits: Sequence[Hit]) -> list[tuple[Hit, float]]:
        """The cosine between a query and each hit that has a vector of the same length."""
        known = [(hit, vector) for hit in hits if (vector := self.get(hit.entry.text)) is not None]
        same = [(hit, vector) for hit, vector in known if len(vector.values) == len(query.values)]
        if len(same) > COMPARED:
            same.sort(key=lambda pair: (pair[1].signs ^ query.signs).bit_count())
        return [(hit, sum(map(mul, vector.values, query.values))) for hit, vector in same[:COMPARED]]


def vector_of(values: Sequence[float]) -> Vector:
    """The vector of these numbers, scaled to length one; one of zeros stays as it is."""
    length = sqrt(sum(value * value for value in values)) or 1.0
    signs = "".join("1" if value > 0 else "0" for value in values)
    return Vector(array("f", [value / length for value in values]), int(signs, 2))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class SessionTotals(Protocol):
    """Keeps the totals of sessions."""

    async def amend(self, recognised: Recognised, change: Callable[[Session], Session], *, creates: bool) -> None:
        """Changes a session; one that is not stored yet only with `creates`."""


class Asker(NamedTuple):
    """The request on whose behalf vectors are made."""

    recognised: Recognised
    caller: Callable[[bool], Caller]
    """The caller of a call, given whether that is made in the background."""
    allowed: Callable[[float], int]
    """The maximum tokens that all vectors of the session may cost, given the allowed share of its forwarded tokens."""
    spent: int = 0
    """The tokens that they had cost when the request came."""

    @property
    def key(self) -> StoreKey:
        return self.recognised.key


@dataclass(slots=True)
class Meanings:
    """Makes and compares the vectors of passages; one per app. `model` names the embedding model that `embed` asks.

    `totals` gets the tokens that a session has spent; `allowance` is the share of its forwarded tokens that it may
    spend.
    """

    embed: Callable[[Sequence[str], ModelRole, Caller], Awaitable[Embedded | Failure]]
    totals: SessionTotals
    model: str
    allowance: float
    clock: Callable[[], float]
    _sessions: Lru[StoreKey, SessionVectors] = field(default_factory=lambda: Lru(MAX_BYTES))
    _paused_until: Lru[str, float] = field(default_factory=lambda: Lru(MAX_TENANTS))

    def vectors(self, key: StoreKey) -> SessionVectors:
        """The vectors of a session; counts as a use of them."""
        return self._sessions.use(key) or self._sessions.put(key, SessionVectors(), MIN_BYTES)

    async def learn(self, asker: Asker, texts: Sequence[str]) -> None:
        """Makes the vectors of texts that have none yet, the last texts first; raises nothing."""
        known, most = self.vectors(asker.key), asker.allowed(self.allowance)
        # The larger of two counts: the store has what other processes spent, this one what is not stored yet.
        known.tokens = max(known.tokens, asker.spent)
        unknown = known.unknown(reversed(texts))
        for start in range(0, min(len(unknown), BATCH * MAX_BATCHES), BATCH):
            if known.tokens >= most or known.size > MAX_BYTES:
                break
            batch = unknown[start : start + BATCH]
            found = await self._embed(known, batch, asker, TIMEOUT, background=True)
            if found is None:
                break
            await asyncio.to_thread(known.put, batch, found.vectors)
            self._sessions.put(asker.key, known, known.size)
        tokens, known.unreported = known.unreported, 0
        if tokens:
            await self.totals.amend(
                asker.recognised,
                lambda session: session.with_totals(own_tokens=tokens, embedding_tokens=tokens),
                creates=False,
            )

    async def query(self, asker: Asker, text: str, wait: float) -> Vector | None:
        """The vector of a query; None if it takes more than `wait` seconds, or there is nothing to compare it with."""
        known = self.vectors(asker.key)
        if (ready := known.get(text)) is not None:
            return ready
        if wait <= 0 or known.is_empty:
            return None
        found = await self._embed(known, [text[:QUERY_CHARS]], asker, wait, background=False)
        return None if found is None else vector_of(found.vectors[0])

    async def rank(self, key: StoreKey, query: Vector, hits: Sequence[Hit], visible: Sequence[Hit]) -> list[Hit]:
        """The hits by words fused with those of the `visible` passages that are close to the query in meaning."""
        known = self.vectors(key)
        return await asyncio.to_thread(lambda: fuse(hits, outstanding(known.closeness(query, visible))))

    async def _embed(
        self, known: SessionVectors, texts: Sequence[str], asker: Asker, timeout: float, *, background: bool
    ) -> Embedded | None:
        tenant = asker.key.tenant
        if self.clock() < self._paused_until.get(tenant, 0.0):
            return None
        found = await self.embed(texts, ModelRole(model=self.model, timeout=timeout), asker.caller(background))
        if isinstance(found, Embedded):
            known.tokens += found.tokens
            known.unreported += found.tokens
            return found
        if found.reason in _UNUSABLE:
            self._paused_until.put(tenant, self.clock() + PAUSE)
            _log.warning("the embedding model %s returned no vectors: %s", self.model, found.reason)
        return None
