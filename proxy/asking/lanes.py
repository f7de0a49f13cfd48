"""Lanes: when a model call that no client waits for may be made, one lane for each server.

Clients come first. A lane lets a few calls through at the same time, and none while a crowd of clients arrives
(`crowd`). When the server says 429 or 503, to a client's request or to a call of ours, the lane is closed for as long
as the server asks and a moment longer, in which clients that were told the same come back. After that it opens as a
connection does that has lost packets: one call, once no client's request is under way, and one more for each that
succeeds, so that their number doubles from round to round. So a server that limits its rate refuses clients about as
often as it would without us.

In the mode `idle`, and for a server that is known to do one thing at a time, calls are made only while no client's
request is under way there, and what is running when one arrives is broken off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from math import isfinite

from proxy.asking.crowd import Crowd
from proxy.setting_tables import BackgroundSettings

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
        self._crowd = Crowd()
        self._taken = 0
        self._running: set[asyncio.Timeout] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self) -> None:
        """A client's request for the server has come; it may be a while until it is under way there."""
        self._crowd.arrived(self._clock())

    @contextmanager
    def foreground(self) -> Iterator[None]:
        """Holds while a request that somebody waits for is under way."""
        self._foreground += 1
        if self._yields:
            self._break_off()
        try:
            yield
        finally:
            self._foreground -= 1
            self._admit()

    @asynccontextmanager
    async def background(self, deadline: float) -> AsyncIterator[None]:
        """Holds while a call that nobody waits for is under way.

        Waits for its turn until `deadline` on the clock; raises `Held` where none came, or where the call was broken
        off.
        """
        await self._turn(deadline)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._running.add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                raise Held(PREEMPTED) from None
            raise
        finally:
            self._running.discard(scope)
            self._left()

    @property
    def _yields(self) -> bool:
        """Whether calls give way to any request of a client's."""
        return self._mode == "idle" or (self._mode == "on" and self._serial())

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

    def _is_open(self) -> bool:
        if self._clock() < self._opens_at:
            return False
        if self._foreground and (self._careful or self._yields):
            return False
        return self._taken < self._at_once

    async def _turn(self, deadline: float) -> None:
        """Takes a place in the lane."""
        now = self._clock()
        if self._mode == "off" or max(self._closed_until, now) > deadline:
            raise Held(PAUSED)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            async with asyncio.timeout(deadline - now):
                await turn
        except (TimeoutError, asyncio.CancelledError) as over:
            if turn.done() and not turn.cancelled():
                self._left()
            if isinstance(over, TimeoutError):
                raise Held(PAUSED) from None
            raise

    def _left(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        """Gives places to those who wait, first come first served, as far as the lane is open."""
        while self._waiting and (self._waiting[0].done() or self._is_open()):
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
        closed_for = self._opens_at - self._clock()
        if self._waiting and closed_for > 0:
            self._look_again_in(closed_for)

    def _look_again_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._admit)

    def _break_off(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._running:
            self._running.pop().reschedule(now)


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
