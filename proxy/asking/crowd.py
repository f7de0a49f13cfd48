"""A crowd: so many requests of clients at once that a limit of the server's rate may be near.

Whether a server limits its rate shows only in its answers, and these come after the first of our own calls would have
gone out. So calls that nobody waits for stand back while a crowd arrives: until it pauses, or until the server has
served it for a while. After that the same crowd, or the next one soon after, is no reason to wait any more.
"""

from __future__ import annotations

from collections import deque

SIZE = 16  # requests
SPAN = 1.0  # seconds in which so many make a crowd, and in which another may follow
PATIENCE = 5.0  # seconds of a crowd without a refusal, after which the server is taken to bear it
TRUST = 60.0  # seconds for which that is believed after the crowd


class Crowd:
    """The requests of clients for one server, by when they came; times are seconds on one clock."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=SIZE)
        self._since = self._seen = float("-inf")

    def arrived(self, now: float) -> None:
        """A request has come."""
        self._latest.append(now)
        if len(self._latest) < SIZE or now - self._latest[0] >= SPAN:
            return
        if now >= self._seen + TRUST:
            self._since = now
        self._seen = now

    def refused(self) -> None:
        """The server does not bear it: the next crowd is a new one."""
        self._since = self._seen = float("-inf")

    @property
    def over_at(self) -> float:
        """When calls of ours need not stand back any more; a time in the past, where no crowd is there."""
        return min(self._seen + SPAN, self._since + PATIENCE)
