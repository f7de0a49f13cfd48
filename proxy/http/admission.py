"""Admits requests: bounds how many are served at the same time, in total and for each tenant, and what they take.

A request takes a place when its body is complete, so that requests which never come to their end keep nobody waiting.
If no place is free it waits in a queue; if the queue is full, or the wait takes too long, `Overloaded` is raised. A
free place goes to the request that has waited longest, unless its tenant has all the places that it may have. A body
that is streamed to the upstream takes a place before it is complete: only half of the places may be taken like that.

Memory is bounded too. While a body is read and condensed it takes about `PEAK` times its bytes, and `KEPT` times its
bytes until its reply has ended. A request whose peak finds no room waits like one without a place.

    place = admission.place(tenant)
    try:
        place.hold(bytes of the body as they come)
        await place.take()
        ...
        place.ease()
    finally:
        place.leave()
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic

from proxy import LOGGER
from proxy.errors import BodyTooLarge, Overloaded
from proxy.settings import LimitSettings

ASKS_FOR = 30.0  # seconds for which a tenant counts as asking for a place at an upstream
QUIET = 5.0  # seconds without a refusal after which refusals have ended
PEAK, KEPT = 16, 4  # bytes of memory for each byte of a body: at most while it is read and condensed, and from then on
SMALL = 64 * 1024  # bytes of a body that always may come in; the number of connections bounds how many such there are

_log = logging.getLogger(LOGGER)


class Refusal(StrEnum):
    """Why a request was not served."""

    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    BODIES = "bodies"
    UPSTREAM = "upstream"


_SENTENCES = {
    Refusal.QUEUE_FULL: "The proxy serves as many requests as it may, and its queue is full.",
    Refusal.QUEUE_TIMEOUT: "The proxy serves as many requests as it may, and none ended in time.",
    Refusal.UPSTREAM: "The upstream serves as many requests of this proxy as it may.",
    Refusal.BODIES: "The bodies that are coming in take as much memory as they may.",
}


@dataclass(slots=True)
class RefusalLog:
    """Logs where refusals of `what` (`connections`, `requests`) begin and where they end."""

    what: str
    count: int = 0  # refusals since they began; 0 after they have ended
    _last: float = 0.0

    def refuse(self, why: str) -> None:
        if not self.count:
            _log.warning("%s are refused: %s", self.what, why)
        self.count += 1
        self._last = monotonic()

    def serve(self) -> None:
        """Notes that one was served, which may end the refusals."""
        if self.count and monotonic() - self._last > QUIET:
            _log.warning("%s are served again; refused: %d", self.what, self.count)
            self.count = 0


@dataclass(slots=True, eq=False)
class Place:
    """What one request takes: memory for its body, and a place from when that is complete."""

    _admission: Admission
    tenant: str
    bytes: int = 0  # bytes of its body so far
    memory: int = 0  # bytes of memory that are counted for it
    is_taken: bool = False
    is_upload: bool = False
    grown: int = 0  # bytes that were let through `grow`
    upstream: str = ""  # where it is counted, if anywhere

    def hold(self, count: int) -> None:
        """Adds more bytes of the body; raises `Overloaded` if the bodies that come in have too many together."""
        admission = self._admission
        self.bytes += count
        self.memory += count
        admission.memory += count
        if not self.is_taken:
            admission.incoming += count
            # A quarter is for bodies on their way, so that these never keep a complete one from its peak.
            if admission.incoming > admission.limits.bodies // 4 and self.bytes > SMALL:
                raise admission.refused(Refusal.BODIES)

    async def take(self, *, is_upload: bool = False) -> None:
        """Waits until the request may be served; raises `Overloaded`."""
        if not self.is_taken:
            self.is_upload = is_upload
            await self._admission.enter(self)

    async def grow(self, size: int, most: int) -> None:
        """Lets more be made of the request than came: the gate for items, a stored history and whatever else expands.

        It is asked before anything is made, with the `size` in bytes that is known by then, and holds the memory for
        it and waits for its peak. Raises `BodyTooLarge` above `most`, and `Overloaded`.
        """
        if size > most:
            raise BodyTooLarge(f"With what it stands for, the request has more than {most:,} bytes.")
        if size > self.grown:
            more, self.grown = size - self.grown, size
            self._admission.give_back(self)
            self.hold(more)
            if not self._admission.is_free(self):
                self._admission.pass_on()  # while it waits, others may have what it had
            await self._admission.enter(self)

    def spare(self, count: int) -> bool:
        """Holds so much memory beside the body for what the request can do without, if there is room for it now."""
        more = max(KEPT * self.bytes + count - self.memory, 0)  # its peak has room for it
        if has_room := self._admission.memory + more <= self._admission.limits.bodies:
            self.memory += more
            self._admission.memory += more
        return has_room

    def enter_upstream(self, name: str, most: int | None) -> None:
        """Counts the request at an upstream that serves at most so many; raises `Overloaded`."""
        if most is None or self.upstream == name:
            return
        # It waits for none: with its place and its memory it would keep requests to other upstreams waiting too.
        admission, now, share = self._admission, monotonic(), (name, self.tenant)
        asked = admission.askers.get(name, {})
        others = {tenant: at for tenant, at in asked.items() if tenant != self.tenant}
        admission.askers[name] = {**dict([*others.items()][-1:]), self.tenant: now}
        # While others ask too, half must be enough, so that each of them finds a free one.
        mine = max(most // 2, 1) if any(at > now - ASKS_FOR for at in others.values()) else most
        if admission.upstreams[name] >= most or admission.shares[share] >= mine:
            raise admission.refused(Refusal.UPSTREAM)
        self.upstream = name
        admission.upstreams[name] += 1
        admission.shares[share] += 1

    def ease(self) -> None:
        """Notes that the body is on its way to the upstream: it has been read and condensed."""
        if self.memory > KEPT * self.bytes:
            self._admission.memory += KEPT * self.bytes - self.memory
            self.memory = KEPT * self.bytes
            if self._admission.waiting:
                self._admission.pass_on()

    def leave(self) -> None:
        """Gives back all that the request has taken."""
        admission, share = self._admission, (self.upstream, self.tenant)
        if self.upstream:
            admission.upstreams[self.upstream] -= 1
            admission.shares[share] -= 1
            if not admission.shares[share]:
                del admission.shares[share]
        if self.is_taken:
            admission.give_back(self)
        admission.incoming -= self.bytes
        admission.memory -= self.memory
        self.memory = 0
        if admission.waiting:
            admission.pass_on()


@dataclass(slots=True, eq=False)
class Admission:
    """The places of one app; `max_served` is the number of requests that are served at the same time.

    `report` is called with each refusal.
    """

    limits: LimitSettings
    max_served: int
    report: Callable[[Refusal], None]
    memory: int = 0
    incoming: int = 0  # bytes of the bodies that are not complete
    upstreams: Counter[str] = field(default_factory=Counter)
    shares: Counter[tuple[str, str]] = field(default_factory=Counter)  # of those by tenant
    askers: dict[str, dict[str, float]] = field(default_factory=dict)
    """The two tenants that asked for a place at an upstream last, each with when it did."""
    waiting: dict[asyncio.Future[None], Place] = field(default_factory=dict)
    unpacking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    _served: int = 0
    _uploads: int = 0
    _tenants: dict[str, int] = field(default_factory=dict)
    _refusals: RefusalLog = field(default_factory=lambda: RefusalLog("requests"))

    def place(self, tenant: str) -> Place:
        return Place(self, tenant)

    async def enter(self, place: Place) -> None:
        """Takes a place as soon as one is free; raises `Overloaded`."""
        # No waiting request may have a place that is free for this one: `pass_on` gives them out.
        if self.is_free(place):
            self._take(place)
            return
        if len(self.waiting) >= self.limits.queue:
            raise self.refused(Refusal.QUEUE_FULL)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[turn] = place
        try:
            async with asyncio.timeout(self.limits.queue_timeout):
                await turn
        except TimeoutError:
            raise self.refused(Refusal.QUEUE_TIMEOUT) from None
        finally:
            self.waiting.pop(turn, None)

    def give_back(self, place: Place) -> None:
        """Makes a request as it was before it took its place."""
        place.is_taken = False
        self.incoming += place.bytes
        self.memory += place.bytes - place.memory
        place.memory = place.bytes
        self._served -= 1
        self._uploads -= place.is_upload
        if left := self._tenants.pop(place.tenant) - 1:
            self._tenants[place.tenant] = left

    def pass_on(self) -> None:
        """Lets those in who have waited longest and may have what has become free."""
        for turn, place in self.waiting.items():
            if self._served >= self.max_served:
                return
            if not turn.done() and self.is_free(place):
                self._take(place)
                turn.set_result(None)

    def is_free(self, place: Place) -> bool:
        if self._served >= self.max_served or self._tenants.get(place.tenant, 0) >= self.limits.per_tenant:
            return False
        if place.is_upload and self._uploads >= max(self.max_served // 2, 1):
            return False
        # The largest body that is allowed is served alone if nothing else lets it in.
        return self.memory - place.memory + PEAK * place.bytes <= self.limits.bodies or not self._served

    def _take(self, place: Place) -> None:
        if self._refusals.count:
            self._refusals.serve()
        place.is_taken = True
        self.incoming -= place.bytes
        self.memory += PEAK * place.bytes - place.memory
        place.memory = PEAK * place.bytes
        self._served += 1
        self._uploads += place.is_upload
        self._tenants[place.tenant] = self._tenants.get(place.tenant, 0) + 1

    def refused(self, why: Refusal) -> Overloaded:
        self.report(why)
        self._refusals.refuse(f"{why}, {self._served} are served and {len(self.waiting)} wait")
        return Overloaded(_SENTENCES[why])
