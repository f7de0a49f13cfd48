"""Admits requests: bounds how many are served at the same time, in total and for each tenant, and how many wait.

A request is admitted before its body is read. If no place is free it waits in a queue; if the queue is full, or the
wait takes too long, `Overloaded` is raised. A free place goes to the request that has waited longest, unless its tenant
has all the places that it may have. An admitted request reports the bytes of its body, whose total is bounded too.

    place = await admission.enter(tenant)
    try: ...
    finally: place.leave()
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic

from proxy.errors import Overloaded
from proxy.package import LOGGER
from proxy.settings import LimitSettings

QUIET = 5.0
"""Seconds without a refusal that end a spell."""

_log = logging.getLogger(LOGGER)


class Refusal(StrEnum):
    """Why a request was not served."""

    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    BODIES = "bodies"


_SENTENCES = {
    Refusal.QUEUE_FULL: "The proxy serves as many requests as it may, and its queue is full.",
    Refusal.QUEUE_TIMEOUT: "The proxy serves as many requests as it may, and none ended in time.",
    Refusal.BODIES: "The bodies of the requests that are served take as much memory as they may.",
}


@dataclass(slots=True)
class Spell:
    """A spell of refusals of `what` (`connections`, `requests`); its beginning and its end are logged."""

    what: str
    count: int = 0
    """Refusals in this spell; 0 while there is none."""
    _last: float = 0.0

    def refuse(self, why: str) -> None:
        if not self.count:
            _log.warning("%s are refused: %s", self.what, why)
        self.count += 1
        self._last = monotonic()

    def serve(self) -> None:
        """Notes that one was served, which may end a spell."""
        if self.count and monotonic() - self._last > QUIET:
            _log.warning("%s are served again; refused: %d", self.what, self.count)
            self.count = 0


@dataclass(slots=True, eq=False)
class Place:
    """The place of one admitted request, until it leaves."""

    _admission: Admission
    tenant: str
    bytes: int = 0

    def hold(self, count: int) -> None:
        """Adds more bytes of the body; raises `Overloaded` if all bodies together have too many."""
        self.bytes += count
        self._admission.hold(count)

    def leave(self) -> None:
        self._admission.leave(self)


@dataclass(slots=True, eq=False)
class Admission:
    """The places of one app; `max_served` is the number of requests that are served at the same time.

    `report` is called with each refusal.
    """

    limits: LimitSettings
    max_served: int
    report: Callable[[Refusal], None]
    _bytes: int = 0
    _served: int = 0
    _tenants: Counter[str] = field(default_factory=Counter)
    _waiting: dict[asyncio.Future[Place], str] = field(default_factory=dict)
    _spell: Spell = field(default_factory=lambda: Spell("requests"))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def enter(self, tenant: str) -> Place:
        """A place, as soon as one is free; raises `Overloaded`."""
        # No waiting request may have a place that is free for this tenant: `leave` passes places on.
        if self._is_free(tenant):
            return self._take(tenant)
        if len(self._waiting) >= self.limits.queue:
            raise self._refused(Refusal.QUEUE_FULL)
        place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting[place] = tenant
        try:
            async with asyncio.timeout(self.limits.queue_timeout):
                return await place
        except BaseException as error:
            if place.done() and not place.cancelled():
                place.result().leave()
            if isinstance(error, TimeoutError):
                raise self._refused(Refusal.QUEUE_TIMEOUT) from None
            raise
        finally:
            self._waiting.pop(place, None)

    def hold(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self.limits.bodies:
            raise self._refused(Refusal.BODIES)

    def leave(self, place: Place) -> None:
        """Gives a place back; the first request in the queue that may have it gets it."""
        self._bytes -= place.bytes
        self._served -= 1
        self._tenants[place.tenant] -= 1
        if not self._tenants[place.tenant]:
            del self._tenants[place.tenant]
        for next_place, tenant in self._waiting.items():
            if self._is_free(tenant) and not next_place.done():
                next_place.set_result(self._take(tenant))
                return

    def _is_free(self, tenant: str) -> bool:
        return self._served < self.max_served and self._tenants[tenant] < self.limits.per_tenant

    def _take(self, tenant: str) -> Place:
        if self._spell.count:
            self._spell.serve()
        self._served += 1
        self._tenants[tenant] += 1
        return Place(self, tenant)

    def _refused(self, why: Refusal) -> Overloaded:
        self.report(why)
        self._spell.refuse(f"{why}, {self._served} are served and {len(self._waiting)} wait")
        return Overloaded(_SENTENCES[why])
