"""Outages of the store, as the log tells them: one line when one begins, and one when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy.store.base import StoreError
from proxy.store.breaker import ANSWERS

REFUSED_WRITES = frozenset(("store-full", "store-read-only"))
"""Answers that last: nothing can be written, while reading goes on."""
_log = logging.getLogger(__name__)


class Outage:
    """Whether the store fails now; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._requests = 0
        self._writes_only = False

    def failed(self, what: str, error: StoreError, *, is_request: bool = False) -> None:
        """Notes that something failed; an error that is no outage is logged each time, any other the first time.

        With `is_request` a request has to do without the store.
        """
        refuses_writes = error.reason in REFUSED_WRITES
        if error.reason in ANSWERS and not refuses_writes:
            _log.warning("%s: %s", what, error)
            return
        if self._since is None:
            self._since, self._writes_only = self._clock(), refuses_writes
            _log.warning("the store fails, and requests are served without it: %s", error)
        self._requests += is_request
        _log.debug("%s: %s", what, error)

    def answered(self, *, wrote: bool = False) -> None:
        """Notes that the store did what it was asked, and whether it `wrote`."""
        if self._since is None or (self._writes_only and not wrote):
            return
        seconds, requests = self._clock() - self._since, self._requests
        self._since, self._requests = None, 0
        _log.warning("the store works again after %.1f s; requests served without it: %d", seconds, requests)
