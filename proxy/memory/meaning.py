"""Meaning: passages are found by an embedding model too, where the settings name one.

The vectors of passages are made once a reply has been sent, by calls in the background, the newest passages first. What
a session spends on them comes out of its allowance (`proxy/condensing/allowance.py`), and is added to its totals. A
query is waited for as long as the settings say, and only where there are vectors to hold it against; without one, as
after any failure, words alone rank.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from proxy.asking import Caller
from proxy.asking.embeddings import Embedded
from proxy.memory.vectors import SessionVectors, Vector, Vectors, vector_of
from proxy.runtime.lru import Lru
from proxy.sessions.recognition import Recognised
from proxy.sessions.session import Session
from proxy.settings.tables import ModelRole
from proxy.store.base import SessionKey
from strategies.core.effects import Failure
from strategies.memory.fusing import fused, outstanding
from strategies.memory.ranking import Hit

BATCH = 64
MOST_BATCHES = 4
"""After one reply; what is left has its turn after the next."""
TIMEOUT = 60.0  # seconds of a call in the background
QUERY_CHARS = 2_000
PAUSE = 600.0  # seconds after an answer that cannot be used: the endpoint, or the model, is not there
MOST_TENANTS = 10_000
_UNUSABLE = ("http-error", "unreadable")

_log = logging.getLogger(__name__)


class Embedder(Protocol):
    """Who makes vectors."""

    async def embedded(self, texts: Sequence[str], role: ModelRole, caller: Caller) -> Embedded | Failure:
        """The vectors of texts; failures are results."""
        ...


class Books(Protocol):
    """Where the totals of sessions are kept."""

    async def amend(self, found: Recognised, change: Callable[[Session], Session], *, opens: bool) -> None:
        """Changes a session; one that is not stored yet only where it `opens` such."""
        ...


class Asker(NamedTuple):
    """On whose behalf vectors are made: of a session, by a caller in the background or not.

    `allowed` are the tokens that all its vectors may have cost, by the share that is allowed of what it has forwarded;
    `spent` are those that they had cost when the request came.
    """

    found: Recognised
    caller: Callable[[bool], Caller]
    allowed: Callable[[float], int]
    spent: int = 0

    @property
    def key(self) -> SessionKey:
        """Where the session is stored."""
        return self.found.key


class Meanings:
    """The vectors of what is remembered; one per app. `model` is who makes them.

    `books` is told what a session has spent; `allowance` is the share of what it has forwarded that it may spend.
    """

    def __init__(
        self, embedder: Embedder, books: Books, model: str, allowance: float, clock: Callable[[], float]
    ) -> None:
        self._embedder = embedder
        self._books = books
        self._model = model
        self._allowance = allowance
        self._clock = clock
        self._vectors = Vectors()
        self._closed: Lru[str, float] = Lru(MOST_TENANTS)

    async def learn(self, asker: Asker, texts: Sequence[str]) -> None:
        """Has vectors made of texts that have none yet, the last ones first; raises nothing."""
        known = self._vectors.of(asker.key)
        # What other processes have spent, and what the store did not have yet when the request came.
        known.tokens = max(known.tokens, asker.spent)
        await self._learn(known, asker, texts)
        tokens, known.untold = known.untold, 0
        if tokens:
            await self._books.amend(
                asker.found, lambda session: session.counted(own_tokens=tokens, embedding_tokens=tokens), opens=False
            )

    async def _learn(self, known: SessionVectors, asker: Asker, texts: Sequence[str]) -> None:
        most = asker.allowed(self._allowance)
        unknown = known.unknown(reversed(texts))
        for start in range(0, min(len(unknown), BATCH * MOST_BATCHES), BATCH):
            if known.tokens >= most or not self._vectors.has_room():
                return
            batch = unknown[start : start + BATCH]
            found = await self._asked(batch, asker, TIMEOUT, background=True)
            if found is None:
                return
            known.spend(found.tokens)
            await asyncio.to_thread(known.put, batch, found.vectors)

    async def query(self, asker: Asker, text: str, wait: float) -> Vector | None:
        """The vector of a query, if it comes within `wait` seconds and there is any to hold it against."""
        known = self._vectors.of(asker.key)
        if (ready := known.get(text)) is not None:
            return ready
        if wait <= 0 or not len(known):
            return None
        found = await self._asked([text[:QUERY_CHARS]], asker, wait, background=False)
        if found is None:
            return None
        known.spend(found.tokens)
        return vector_of(found.vectors[0])

    async def ranked(self, key: SessionKey, query: Vector, hits: Sequence[Hit], visible: Sequence[Hit]) -> list[Hit]:
        """Hits of words together with what of all that is visible means what the query does."""
        known = self._vectors.of(key)
        return await asyncio.to_thread(lambda: fused(hits, outstanding(known.closeness(query, visible))))

    async def _asked(self, texts: Sequence[str], asker: Asker, timeout: float, *, background: bool) -> Embedded | None:
        tenant = asker.key.tenant
        if self._clock() < (self._closed.get(tenant) or 0.0):
            return None
        role = ModelRole(model=self._model, timeout=timeout)
        found = await self._embedder.embedded(texts, role, asker.caller(background))
        if isinstance(found, Embedded):
            return found
        if found.reason in _UNUSABLE:
            self._closed.put(tenant, self._clock() + PAUSE)
            _log.warning("no vectors come of %s: %s", self._model, found.reason)
        return None
