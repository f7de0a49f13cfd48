"""Turns of append mode: one append to a history at a time, so that no reply is paid for that cannot be stored.

In a process the next append waits, and then reads the history that the one before it has stored. Between replicas a
claim decides: the loser is told the newest head. A replica that dies loses its claims after `ttl` seconds. Correctness
does not depend on claims: an append that another one overtakes all the same is not stored, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import uuid4
from weakref import WeakValueDictionary

from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError, StoreKey

_ENDED = 0.001  # seconds: a claim that is renewed for so long has ended


@dataclass(frozen=True, slots=True)
class Appends:
    """The turns of one replica. `ttl` is the longest that an upstream may be silent, in seconds."""

    _stored: StoredSessions
    ttl: float
    _holder: str = field(default_factory=lambda: uuid4().hex)
    _locks: WeakValueDictionary[StoreKey, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @asynccontextmanager
    async def turn(self, key: StoreKey, *, claims: bool) -> AsyncIterator[bool]:
        """A turn for the history of a session; false if another replica has it. Raises `StoreError`."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            has_claim = not claims or await self._claim(key, self.ttl)
            try:
                yield has_claim
            finally:
                if claims and has_claim:
                    with suppress(StoreError):
                        await self._claim(key, _ENDED)

    async def _claim(self, key: StoreKey, ttl: float) -> bool:
        claiming = self._stored.store.claim(key.tenant, f"append-{key.name}", self._holder, ttl)
        return await self._stored.write(claiming, self._stored.patience())
