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
    spared: int = 0  # bytes of memory that were let through `spare`
    upstream: str = ""  # where it is counted, if anywhere

    def hold(self, count: int) -> None:
        """Adds more bytes of the body; raises `Overloaded` if the bodies that come in have too many together."""
        self._admission.hold(self, count)

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
            await self._admission.expand(self, more)

    def spare(self, count: int) -> bool:
        """Holds so much memory for what the request can do without, such as an index, if there is room for it now."""
        more = max(count - self.spared, 0)
        has_room = self._admission.spare(self, more)
        self.spared += more * has_room
        return has_room

    def enter_upstream(self, name: str, most: int | None) -> None:
        """Counts the request at an upstream that serves at most so many; raises `Overloaded`."""
        if most is not None and self.upstream != name:
            self._admission.enter_upstream(self, name, most)

    def ease(self) -> None:
        """Notes that the body is on its way to the upstream: it has been read and condensed."""
        if self.memory > KEPT * self.bytes:
            self._admission.ease(self)

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
    _memory: int = 0
    _incoming: int = 0  # bytes of the bodies that are not complete
    _served: int = 0
    _uploads: int = 0
    _tenants: dict[str, int] = field(default_factory=dict)
    _upstreams: Counter[str] = field(default_factory=Counter)
    _shares: Counter[tuple[str, str]] = field(default_factory=Counter)  # of those by tenant
    _asked: dict[str, dict[str, float]] = field(default_factory=dict)
    """The two tenants that asked for a place at an upstream last, each with when it did."""
    _waiting: dict[asyncio.Future[None], Place] = field(default_factory=dict)
    _refusals: RefusalLog = field(default_factory=lambda: RefusalLog("requests"))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def place(self, tenant: str) -> Place:
        return Place(self, tenant)

    async def enter(self, place: Place) -> None:
        """Takes a place as soon as one is free; raises `Overloaded`."""
        # No waiting request may have a place that is free for this one: `_pass_on` gives them out.
        if self._is_free(place):
            self._take(place)
            return
        if len(self._waiting) >= self.limits.queue:
            raise self._refused(Refusal.QUEUE_FULL)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = place
        try:
            async with asyncio.timeout(self.limits.queue_timeout):
                await turn
        except TimeoutError:
            raise self._refused(Refusal.QUEUE_TIMEOUT) from None
        finally:
            self._waiting.pop(turn, None)

    def hold(self, place: Place, count: int) -> None:
        place.bytes += count
        place.memory += count
        self._memory += count
        self._incoming += 0 if place.is_taken else count
        # A quarter is for bodies on their way, so that these never keep a complete one from its peak.
        if not place.is_taken and self._incoming > self.limits.bodies // 4 and place.bytes > SMALL:
            raise self._refused(Refusal.BODIES)

    async def expand(self, place: Place, count: int) -> None:
        self._give_back(place)
        place.hold(count)
        if not self._is_free(place):
            self._pass_on()  # while it waits, others may have what it had
        await self.enter(place)

    def spare(self, place: Place, count: int) -> bool:
        if self._memory + count > self.limits.bodies:
            return False
        place.memory += count
        self._memory += count
        return True

    def enter_upstream(self, place: Place, name: str, most: int) -> None:
        # It waits for none: with its place and its memory it would keep requests to other upstreams waiting too.
        now, share, asked = monotonic(), (name, place.tenant), self._asked.setdefault(name, {})
        others = {tenant: at for tenant, at in asked.items() if tenant != place.tenant}
        self._asked[name] = {**dict([*others.items()][-1:]), place.tenant: now}
        # While others ask too, half must be enough, so that each of them finds a free one.
        mine = max(most // 2, 1) if any(at > now - ASKS_FOR for at in others.values()) else most
        if self._upstreams[name] >= most or self._shares[share] >= mine:
            raise self._refused(Refusal.UPSTREAM)
        place.upstream = name
        self._upstreams[name] += 1
        self._shares[share] += 1

    def ease(self, place: Place) -> None:
        self._memory += KEPT * place.bytes - place.memory
        place.memory = KEPT * place.bytes
        if self._waiting:
            self._pass_on()

    def leave(self, place: Place) -> None:
        """Gives back all that a request has taken."""
        if place.upstream:
            self._upstreams[place.upstream] -= 1
            self._shares.subtract([(place.upstream, place.tenant)])
            if not self._shares[place.upstream, place.tenant]:
                del self._shares[place.upstream, place.tenant]
        if place.is_taken:
            self._give_back(place)
        self._incoming -= place.bytes
        self._memory -= place.memory
        place.memory = 0
        if self._waiting:
            self._pass_on()

    def _give_back(self, place: Place) -> None:
        """Makes a request as it was before it took its place."""
        place.is_taken = False
        self._incoming += place.bytes
        self._memory += place.bytes - place.memory
        place.memory = place.bytes
        self._served -= 1
        self._uploads -= place.is_upload
        if left := self._tenants.pop(place.tenant) - 1:
            self._tenants[place.tenant] = left

    def _pass_on(self) -> None:
        """Lets those in who have waited longest and may have what has become free."""
        for turn, place in self._waiting.items():
            if self._served >= self.max_served:
                return
            if not turn.done() and self._is_free(place):
                self._take(place)
                turn.set_result(None)

    def _is_free(self, place: Place) -> bool:
        if self._served >= self.max_served or self._tenants.get(place.tenant, 0) >= self.limits.per_tenant:
            return False
        if place.is_upload and self._uploads >= max(self.max_served // 2, 1):
            return False
        # The largest body that is allowed is served alone if nothing else lets it in.
        return self._memory - place.memory + PEAK * place.bytes <= self.limits.bodies or not self._served

    def _take(self, place: Place) -> None:
        if self._refusals.count:
            self._refusals.serve()
        place.is_taken = True
        self._incoming -= place.bytes
        self._memory += PEAK * place.bytes - place.memory
        place.memory = PEAK * place.bytes
        self._served += 1
        self._uploads += place.is_upload
        self._tenants[place.tenant] = self._tenants.get(place.tenant, 0) + 1

    def _refused(self, why: Refusal) -> Overloaded:
        self.report(why)
        self._refusals.refuse(f"{why}, {self._served} are served and {len(self._waiting)} wait")
        return Overloaded(_SENTENCES[why])
