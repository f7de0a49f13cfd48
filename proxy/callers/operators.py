"""Who may administer: the holder of the admin token, and the holders of keys with a role.

A wrong token or key gets its answer late, and few are looked at in that time, over however many connections they come:
so nobody tries many. A right one waits only behind wrong ones that were there before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hmac import compare_digest
from typing import NamedTuple

from proxy.callers.keys import Keys
from proxy.errors import BadRequest, InvalidKey, TooManyAttempts
from proxy.http.headers import first
from proxy.settings.loading import Handles
from proxy.settings.tables import KeyEntry

TOKEN = "token"  # noqa: S105
UNKNOWN = "unknown"  # the name of one who is neither
ADMIN, READ_ONLY = "admin", "read_only"
READING = ("GET", "HEAD")
_LATE = 0.5  # seconds until a wrong one is answered
_AT_ONCE = 8  # of them that are looked at in that time
_MOST = 128  # that wait to be looked at; the next is answered without that


def opens_handles(handles: Handles, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a request has the token for handles."""
    scheme, _, given = (first(headers, b"authorization") or "").partition(" ")
    is_it = compare_digest(given.strip().encode("latin-1", "replace"), handles.token.encode())
    return bool(handles.token) and scheme.lower() == "bearer" and is_it


class Operator(NamedTuple):
    name: str  # that of the key; `token` for the holder of the token
    role: str  # `admin`, `read_only`, or "" for a key that has none
    secret: bytes  # what signs the cookies of this operator, which end with the key

    def may(self, method: str) -> bool:
        return self.role == ADMIN or (self.role == READ_ONLY and method in READING)


class Operators:
    """Without a `token` nobody is let in; `keys` is None where callers need none of the proxy's own."""

    def __init__(
        self, token: str | None, keys: Keys | None = None, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        self._token, self._keys, self._sleep = (token or "").encode(), keys, sleep
        self._turns, self._waiting = asyncio.Semaphore(_AT_ONCE), 0

    @property
    def is_closed(self) -> bool:
        return not self._token

    @property
    def holder(self) -> Operator:
        """The holder of the token."""
        return Operator(TOKEN, ADMIN, self._token)

    def by_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> Operator | None:
        """Who sends a request: the token comes as `Authorization: Bearer`, a key as it does to models."""
        scheme, _, given = (first(headers, b"authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given):
            return self.holder
        try:
            return None if self._keys is None or self.is_closed else self._of(self._keys.key_of(headers))
        except (InvalidKey, BadRequest):
            return None

    def by_text(self, given: str) -> Operator | None:
        """Whose token or key this is."""
        if self._is_token(given):
            return self.holder
        try:
            return None if self._keys is None or self.is_closed else self._of(self._keys.entry_of(given.strip()))
        except InvalidKey:
            return None

    def __iter__(self) -> Iterator[Operator]:
        """All who may sign in."""
        yield self.holder
        yield from map(self._of, self._keys.valid() if self._keys is not None else ())

    async def judged(self, find: Callable[[], Operator | None]) -> Operator | None:
        """Whom `find` finds, or None and late; raises `TooManyAttempts` without looking if many wait."""
        if self._waiting >= _MOST:
            raise TooManyAttempts("Too many wrong tokens and keys; try again later.")
        self._waiting += 1
        try:
            async with self._turns:
                if (found := find()) is None:
                    await self._sleep(_LATE)
                return found
        finally:
            self._waiting -= 1

    def _is_token(self, given: str) -> bool:
        return not self.is_closed and compare_digest(given.strip().encode("latin-1", "replace"), self._token)

    def _of(self, key: KeyEntry) -> Operator:
        # Who reads the settings knows the digest, but not the token.
        return Operator(key.name, key.role, self._token + bytes.fromhex(key.sha256))
