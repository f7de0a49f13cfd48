"""A spell of refusals in the log: one line when it begins, and one when it has been over for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from proxy.version import LOGGER

QUIET = 5.0
"""Seconds without a refusal after which a spell is over."""
_log = logging.getLogger(LOGGER)


class Spell:
    """The refusals of `what` (`connections`, `requests`)."""

    def __init__(self, what: str, clock: Callable[[], float] = monotonic) -> None:
        self._what = what
        self._clock = clock
        self._count = 0
        self._last = 0.0

    def refuse(self, why: str) -> None:
        """Notes a refusal."""
        if not self._count:
            _log.warning("%s are refused: %s", self._what, why)
        self._count += 1
        self._last = self._clock()

    def serve(self) -> None:
        """Notes that one was served."""
        if self._count and self._clock() - self._last > QUIET:
            _log.warning("%s are served again; refused: %d", self._what, self._count)
            self._count = 0
