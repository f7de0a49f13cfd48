"""Detects a crowd: so many clients' requests at once that the server's rate limit may be near.

A server shows that it limits its rate only by its answers, which come after the first of our own calls would have gone
out. So background calls stand back while a crowd arrives: until it pauses, or until the server has served it for a
while. After that the same crowd, or one that follows soon, is no reason to wait any more.
"""

from __future__ import annotations

from collections import deque

SIZE = 16  # requests within SPAN that make a crowd
SPAN = 1.0  # seconds; also how long after its last request a crowd still lasts
PATIENCE = 5.0  # seconds of a crowd without a refusal, after which the server is taken to bear it
TRUST = 60.0  # seconds after the crowd for which that is assumed of the next one


class Crowd:
    """When clients' requests for one server came; times are seconds on one clock."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=SIZE)
        self._since = self._seen = float("-inf")

    def note_arrival(self, now: float) -> None:
        """Notes that a client's request has come."""
        self._latest.append(now)
        if len(self._latest) < SIZE or now - self._latest[0] >= SPAN:
            return
        if now >= self._seen + TRUST:
            self._since = now
        self._seen = now

    def note_refusal(self) -> None:
        """Notes that the server does not bear the crowd: the next one counts from its own beginning."""
        self._since = self._seen = float("-inf")

    @property
    def over_at(self) -> float:
        """The time from which our calls need not stand back; in the past where there is no crowd."""
        return min(self._seen + SPAN, self._since + PATIENCE)
