"""Claims: of several replicas that would start the same background work, one does.

A claim is one conditional write that expires. Nothing depends on it: the first writer of a record decides what counts,
so a claim that is lost or expires too early costs a second call of a model and nothing else. No request waits for one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from proxy.condensing.context import RequestContext
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError

TTL = 120.0
"""Seconds that a claim lasts: more than most calls of a model take. The next turn of a session claims its work anew."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of one replica; `_stored` bounds the store calls."""

    _stored: StoredSessions
    _holder: str = field(default_factory=lambda: uuid4().hex)
    _under_way: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def taken(self, work: str, context: RequestContext) -> AsyncIterator[bool]:
        """Whether the caller may do the background work with this id while the context is open.

        Not if it is under way here or claimed by another replica, and not if the store fails, because that could not
        take the result either. What this replica has ended it may repeat, such as for a client that sends again.
        """
        if not context.request.trust.accepted:
            # Nothing is written for a caller that the upstream has not accepted yet.
            yield True
        elif work in self._under_way:
            yield False
        else:
            self._under_way.add(work)
            try:
                yield await self._claim(work, context)
            finally:
                self._under_way.discard(work)

    async def _claim(self, work: str, context: RequestContext) -> bool:
        claiming = self._stored.store.claim(context.request.tenant, work, self._holder, TTL)
        try:
            return await self._stored.write(claiming, context.recognised.patience)
        except StoreError as error:
            self._stored.outage.failed("background work was not claimed, and so not started", error)
            return False
