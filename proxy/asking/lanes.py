"""Lanes: when a model call that no client waits for may be made, one lane for each server.

Clients come first. A lane lets a few calls through at the same time, and none while a crowd of clients arrives
(`crowd`). When the server says 429 or 503, to a client's request or to a call of ours, the lane is closed for as long
as the server asks and a moment longer, in which clients that were told the same come back. After that it opens as a
connection does that has lost packets: one call, once no client's request is under way, and one more for each that
succeeds, so that their number doubles from round to round. So a server that limits its rate refuses clients about as
often as it would without us.

In the mode `idle`, and for a server that is known to do one thing at a time, calls are made only while no client's
request is under way there, and what is running when one arrives is broken off. The mode is that of the settings, or of
a call whose model has one of its own.

Once a client waits for what comes of a call (`proxy/runtime/waiters.py`), none of this holds for it: a call that waits
for its turn is made at once as that client's, and one that is running is not broken off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import parsedate_to_datetime
from math import isfinite

from proxy.asking.crowd import Crowd
from proxy.runtime.holding import Holding
from proxy.runtime.waiters import NOBODY, Waiters
from proxy.settings.tables import BackgroundSettings, Mode

PAUSE = 30.0  # seconds, where a server that refuses does not say how long
LONGEST_PAUSE = 3_600.0  # seconds; who asks for more is asked once again after that
GRACE = 1.0  # seconds more, so that clients who were told the same come back first

PAUSED = "paused"
PREEMPTED = "preempted"


class Held(Exception):
    """A background call was not made, or was broken off; `reason` is one kebab-case word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Lane:
    """The way to one server; `clock` gives seconds since the epoch, `serial` whether it does one thing at a time."""

    def __init__(
        self, settings: BackgroundSettings, clock: Callable[[], float], serial: Callable[[], bool] = lambda: False
    ) -> None:
        self._mode = settings.mode
        self._serial = serial
        self._most = settings.concurrency
        self._clock = clock
        self._at_once = self._most
        self._careful = False
        self._closed_until = 0.0
        self._foreground = 0
        self._holding = Holding(self._comes, self._goes)
        self._crowd = Crowd()
        self._taken = 0
        self._running: dict[asyncio.Timeout, tuple[Mode, Waiters]] = {}
        self._waiting: dict[asyncio.Future[bool], Mode] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self) -> None:
        """A client's request for the server has come; it may be a while until it is under way there."""
        self._crowd.arrived(self._clock())

    def foreground(self) -> Holding:
        """Holds while a request that somebody waits for is under way."""
        return self._holding

    def _comes(self) -> None:
        self._foreground += 1
        self._break_off()

    def _goes(self) -> None:
        self._foreground -= 1
        self._admit()

    @asynccontextmanager
    async def background(
        self, deadline: float, mode: Mode | None = None, waiters: Waiters = NOBODY
    ) -> AsyncIterator[None]:
        """Holds while a call that nobody waits for is under way, by default in the mode of the settings.

        Waits for its turn until `deadline` on the clock; raises `Held` where none came, or where the call was broken
        off. Where there are `waiters` by its turn, it is a request that somebody waits for.
        """
        mode = mode or self._mode
        if waiters.any or not await self._took_place(deadline, mode, waiters):
            with self.foreground():
                yield
            return
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._running[scope] = mode, waiters
                yield
        except TimeoutError:
            if scope.expired():
                raise Held(PREEMPTED) from None
            raise
        finally:
            self._running.pop(scope, None)
            self._left()

    def _yields(self, mode: Mode) -> bool:
        """Whether a call in this mode gives way to any request of a client's."""
        return mode == "idle" or (mode == "on" and self._serial())

    def refused(self, retry_after: str | None) -> None:
        """The server has refused a request for its rate, with this `Retry-After`."""
        now = self._clock()
        self._closed_until = max(self._closed_until, now + pause(retry_after, now) + GRACE)
        self._careful, self._at_once = True, 1
        self._crowd.refused()

    def served(self) -> None:
        """The server has answered a background call."""
        if self._careful and self._clock() >= self._closed_until:
            self._at_once = min(self._at_once + 1, self._most)
            self._careful = self._at_once < self._most

    @property
    def _opens_at(self) -> float:
        """The time before which no call begins, whatever else is under way."""
        return max(self._closed_until, self._crowd.over_at)

    def _is_open(self, now: float) -> bool:
        if now < self._opens_at or (self._foreground and self._careful):
            return False
        return self._taken < self._at_once

    async def _took_place(self, deadline: float, mode: Mode, waiters: Waiters) -> bool:
        """Waits for a place in the lane and takes it; False where somebody waits for the call first."""
        now = self._clock()
        if mode == "off" or max(self._closed_until, now) > deadline:
            raise Held(PAUSED)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = mode
        self._admit()
        try:
            async with asyncio.timeout(deadline - now):
                with waiters.telling(lambda: self._let_through(turn)):
                    return await turn
        except (TimeoutError, asyncio.CancelledError) as over:
            if turn.done() and not turn.cancelled() and turn.result():
                self._left()
            if isinstance(over, TimeoutError):
                raise Held(PAUSED) from None
            raise

    def _let_through(self, turn: asyncio.Future[bool]) -> None:
        """Lets a call go on without a place."""
        if not turn.done():
            del self._waiting[turn]
            turn.set_result(False)

    def _left(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        """Gives places to those who wait, first come first served, as far as the lane is open to them."""
        if not self._waiting:
            return
        now = self._clock()
        for turn, mode in list(self._waiting.items()):
            if not turn.done() and not self._is_open(now):
                break
            if not turn.done() and self._foreground and self._yields(mode):
                continue
            del self._waiting[turn]
            if not turn.done():
                self._taken += 1
                turn.set_result(True)
        # By the same reading of the clock: had it opened between two, nobody would look again.
        if self._waiting and now < self._opens_at:
            self._look_again_in(self._opens_at - now)

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._admit)

    def _break_off(self) -> None:
        if not self._running:
            return
        now = asyncio.get_running_loop().time()
        for scope, (mode, waiters) in list(self._running.items()):
            if self._yields(mode) and not waiters.any:
                del self._running[scope]
                scope.reschedule(now)


class Lanes:
    """The lanes of one app, by server. `serial` says of a server whether it is known to do one thing at a time."""

    def __init__(
        self, settings: BackgroundSettings, clock: Callable[[], float], serial: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._serial = serial
        self._lanes: dict[str, Lane] = {}

    def to(self, server: str) -> Lane:
        """The lane to a server."""
        if server not in self._lanes:
            self._lanes[server] = Lane(self._settings, self._clock, lambda: self._serial(server))
        return self._lanes[server]


def pause(retry_after: str | None, now: float) -> float:
    """Seconds from `now` on for which a `Retry-After` asks, which is a number of them or a date."""
    seconds = _seconds(retry_after.strip(), now) if retry_after else PAUSE
    return min(max(seconds, 0.0), LONGEST_PAUSE)


def _seconds(text: str, now: float) -> float:
    try:
        number = float(text)
    except ValueError:
        return _until(text, now)
    return number if isfinite(number) else PAUSE


def _until(date: str, now: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError):
        return PAUSE
