"""Facts: small values that belong to no session, shared by replicas and kept over a restart.

Nothing waits for them: a fact that cannot be read is unknown, one that cannot be written is lost, and the log says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.store.base import SessionStore, StoreError
from proxy.store.compress import compress, decompress
from proxy.store.outage import Outage
from proxy.store.patience import Patience


@dataclass(slots=True)
class Facts:
    """The facts of one store."""

    _store: SessionStore
    _timeout: float
    """Seconds that each access may take."""
    _outage: Outage

    async def get(self, name: str, what: str, patience: Patience | None = None) -> bytes | None:
        """The value of a fact; None if there is none or it cannot be read, which the log calls `what`."""
        try:
            stored = await (patience or Patience(self._timeout)).read(self._store.get_fact(name))
            return None if stored is None else decompress(stored)
        except StoreError as error:
            self._outage.failed(f"{what} was not read", error)
            return None

    async def put(self, name: str, value: bytes, ttl: int, what: str) -> bool:
        """Writes a fact that lives for `ttl` seconds, and returns whether it was written."""
        try:
            await Patience(self._timeout).read(self._store.put_fact(name, compress(value), ttl))
        except StoreError as error:
            self._outage.failed(f"{what} was not stored", error)
            return False
        return True
