"""Sessions as they are stored, read within a time limit.

Each step of a request's store work runs under one limit, and whatever a store hands out that cannot be read is the
store's failure, told like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from proxy.sessions import Session
from proxy.store.base import SessionKey, SessionStore, StoreError
from proxy.store.codec import decode_session

T = TypeVar("T")


class StoredSessions:
    """A store and the seconds that a step of a request may spend on it."""

    def __init__(self, store: SessionStore, timeout: float) -> None:
        self.store = store
        self._timeout = timeout

    async def load(self, key: SessionKey) -> Session | None:
        """The session under a key, or None; raises `StoreError`."""
        snapshot = await self.store.load(key)
        try:
            return decode_session(snapshot) if snapshot else None
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a session cannot be read: {type(error).__name__}") from error

    async def in_time(self, work: Awaitable[T]) -> T:
        """The result of `work`; raises `StoreError` where it takes longer than the limit."""
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            raise StoreError("store-timeout", f"not done in {self._timeout} s") from None
