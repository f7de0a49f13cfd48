"""Lanes decide when a model call that no client waits for may be made; there is one lane for each server.

Clients come first. A lane lets a few calls through at the same time, and none while a crowd of clients arrives. If the
server answers 429 or 503, to a client's request or to one of the proxy's own, the lane closes for as long as the server
asks, and a moment longer so that the clients that got the same answer come back first. Then it reopens the way TCP
recovers from packet loss: first one call, when no client's request is under way, then one more for each call that
succeeds, so their number doubles from round to round. So a server that limits its rate refuses clients about as often
as it would without the proxy.

In the mode `idle`, and for a local server, calls are made only while no client's request is under way there, and a
running call is broken off when a client's request arrives. The mode comes from the settings, or from those of the
call's model.

While a client waits for the result of a call (`Waiters`), none of this applies to that call: if it is waiting for its
turn, it is made at once like the client's own request; if it is running, it is not broken off. When the client has
stopped waiting, its own request breaks the call off.

A server that states that it answers one request at a time gets one call at a time, whoever waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from email.utils import parsedate_to_datetime
from math import inf, isfinite

from proxy.runtime.owned_tasks import NOBODY, Waiters
from proxy.settings.tables import BackgroundSettings, Mode

PAUSE = 30.0  # seconds, if a server that refuses does not say how long
MAX_PAUSE = 3_600.0  # seconds; a server that asks for more is tried again after that
MOMENT = 1.0  # seconds that a client's request waits for the end of calls that were broken off for it
GRACE = 1.0  # seconds added, so that clients that got the same refusal come back first

CROWD = 16  # clients' requests within SPAN that make a crowd
SPAN = 1.0  # seconds; a crowd also lasts that long after its last request
PATIENCE = 5.0  # seconds of a crowd without a refusal, after which the server is assumed to cope
TRUST = 60.0  # seconds after a crowd in which the server is assumed to cope with the next one

PAUSED = "paused"
PREEMPTED = "preempted"


class CallBlocked(Exception):
    """A background call was not made, or was broken off; `reason` is one kebab-case word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Lane:
    """Admits background calls to one server.

    `clock` gives seconds since the epoch. `is_local` tells whether the server usually runs on one person's machine,
    `is_serial` whether it states that it answers one request at a time.
    """

    def __init__(
        self,
        settings: BackgroundSettings,
        clock: Callable[[], float],
        is_local: Callable[[], bool] = lambda: False,
        is_serial: Callable[[], bool] = lambda: False,
    ) -> None:
        self._mode = settings.mode
        self._is_local = is_local
        self._is_serial = is_serial
        self._concurrency = settings.concurrency
        self._clock = clock
        self._limit = self._concurrency
        self._is_recovering = False
        self._closed_until = 0.0
        self._clients_under_way = 0
        self._arrivals: deque[float] = deque(maxlen=CROWD)  # when the latest requests of clients came
        self._crowd_began = self._crowd_seen = -inf
        self._places_taken = 0
        self._running: dict[asyncio.Timeout, tuple[Mode, Waiters]] = {}
        self._broken_off: set[asyncio.Timeout] = set()
        self._all_ended = asyncio.Event()  # of those broken off
        self._waiting: dict[asyncio.Future[None], tuple[Mode, Waiters]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note_arrival(self) -> None:
        """Notes that a client's request for the server has come; it may take a while until it is sent there."""
        now, arrivals = self._clock(), self._arrivals
        arrivals.append(now)
        if len(arrivals) == CROWD and now - arrivals[0] < SPAN:
            if now >= self._crowd_seen + TRUST:
                self._crowd_began = now
            self._crowd_seen = now

    def enter_foreground(self) -> None:
        """Notes that a request is under way for which a client waits; `leave_foreground` must follow."""
        self._clients_under_way += 1
        if self._running:
            now = asyncio.get_running_loop().time()
            for scope, (mode, waiters) in list(self._running.items()):
                if self._gives_way(mode) and not waiters.any:
                    del self._running[scope]
                    self._broken_off.add(scope)
                    self._all_ended.clear()
                    scope.reschedule(now)

    async def cleared(self) -> None:
        """Returns when the calls that were broken off have ended, or after a moment."""
        if self._broken_off:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOMENT):
                    await self._all_ended.wait()

    def leave_foreground(self) -> None:
        """Notes that such a request is over."""
        self._clients_under_way -= 1
        if self._waiting:
            self._admit()

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """A context to hold while a request is under way for which a client waits."""
        self.enter_foreground()
        try:
            yield
        finally:
            self.leave_foreground()

    @asynccontextmanager
    async def background(
        self, deadline: float, mode: Mode | None = None, waiters: Waiters = NOBODY
    ) -> AsyncIterator[None]:
        """A context to hold while a call is under way for which a client waits or none does (`waiters`).

        `mode` is by default the settings'. Entering waits for the call's turn until `deadline` on the clock. Raises
        `CallBlocked` if the turn does not come, or if the call is broken off.
        """
        mode = mode or self._mode
        await self._take_place(deadline, mode, waiters)
        scope = asyncio.timeout(None)
        try:
            with self.foreground() if waiters.any else nullcontext():
                async with scope:
                    self._running[scope] = mode, waiters
                    yield
        except TimeoutError:
            if scope.expired():
                raise CallBlocked(PREEMPTED) from None
            raise
        finally:
            self._running.pop(scope, None)
            self._broken_off.discard(scope)
            if not self._broken_off:
                self._all_ended.set()
            self._places_taken -= 1
            self._admit()

    def _gives_way(self, mode: Mode) -> bool:
        """Whether a call in this mode gives way to any client's request."""
        return mode == "idle" or self._is_local() or self._is_serial()

    def note_refusal(self, retry_after: str | None) -> None:
        """Notes that the server has refused a request for its rate, with this `Retry-After`, and closes the lane."""
        now = self._clock()
        self._closed_until = max(self._closed_until, now + pause_seconds(retry_after, now) + GRACE)
        self._is_recovering, self._limit = True, 1
        # The server did not cope with the crowd, so calls wait for the next crowd again.
        self._crowd_began = self._crowd_seen = -inf

    def note_success(self) -> None:
        """Notes that the server has answered a background call; a lane that reopens lets one more through."""
        if self._is_recovering and self._clock() >= self._closed_until:
            self._limit = min(self._limit + 1, self._concurrency)
            self._is_recovering = self._limit < self._concurrency

    @property
    def _opens_at(self) -> float:
        """The time before which no background call begins, even if nothing is under way."""
        crowd_over = min(self._crowd_seen + SPAN, self._crowd_began + PATIENCE)
        return max(self._closed_until, crowd_over)

    async def _take_place(self, deadline: float, mode: Mode, waiters: Waiters) -> None:
        """Waits for a place in the lane and takes it."""
        now = self._clock()
        if not waiters.any and (mode == "off" or max(self._closed_until, now) > deadline):
            raise CallBlocked(PAUSED)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = mode, waiters
        self._admit()
        try:
            async with asyncio.timeout(deadline - now):
                with waiters.notifying(self._admit):
                    await turn
        except (TimeoutError, asyncio.CancelledError) as over:
            if turn.done() and not turn.cancelled():
                self._places_taken -= 1
                self._admit()
            if isinstance(over, TimeoutError):
                raise CallBlocked(PAUSED) from None
            raise

    def _may_begin(self, mode: Mode, waiters: Waiters, now: float) -> bool:
        if self._places_taken and self._is_serial():
            return False
        if waiters.any:
            return True
        is_closed = now < self._opens_at or (self._clients_under_way and self._is_recovering)
        if is_closed or self._places_taken >= self._limit:
            return False
        return not (self._clients_under_way and self._gives_way(mode))

    def _admit(self) -> None:
        """Gives places to waiting calls as far as the lane is open to them, first to those that a client waits for."""
        if not self._waiting:
            return
        now = self._clock()
        for turn, (mode, waiters) in sorted(self._waiting.items(), key=lambda entry: not entry[1][1].any):
            if turn.done():  # its call does not wait any longer
                del self._waiting[turn]
            elif self._may_begin(mode, waiters, now):
                del self._waiting[turn]
                self._places_taken += 1
                turn.set_result(None)
        # `now` is read only once: if the lane opened between two readings, no timer would be set.
        if self._waiting and now < self._opens_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._opens_at - now, self._admit)


def pause_seconds(retry_after: str | None, now: float) -> float:
    """How many seconds from `now` a `Retry-After` asks to wait; its value is a number of seconds or a date."""
    seconds = PAUSE
    if retry_after:
        text = retry_after.strip()
        try:
            seconds = float(text)
        except ValueError:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(text).timestamp() - now
    return min(max(seconds, 0.0), MAX_PAUSE) if isfinite(seconds) else PAUSE
