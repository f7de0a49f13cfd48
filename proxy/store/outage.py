"""Outages of the store, as the log tells them: one line when one begins, and one when it ends.

A store that cannot write, such as a full or a read-only one, is out too, until something is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from proxy.store.base import StoreError
from proxy.store.breaker import ANSWERS

REFUSED_WRITES = frozenset(("store-full", "store-read-only"))
"""Answers that last: nothing can be written, while reading goes on."""
_log = logging.getLogger(__name__)


class Outage:
    """Whether the store fails now; `clock` is monotonic, in seconds.

    `unwritten` is why the last write failed, "" if it did not. `on_write` is called with that after each write.
    """

    def __init__(self, clock: Callable[[], float], on_write: Callable[[str], None] = lambda _reason: None) -> None:
        self.unwritten = ""
        self._clock = clock
        self._on_write = on_write
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

    def write_failed(self, error: StoreError) -> None:
        """Notes that a write has failed because of the store, not because of what was to be written."""
        if error.reason in REFUSED_WRITES or error.reason not in ANSWERS:
            self.unwritten = error.reason
            self._on_write(error.reason)

    def answered(self, *, wrote: bool = False) -> None:
        """Notes that the store did what it was asked, and whether it `wrote`."""
        if wrote:
            self.unwritten = ""
            self._on_write("")
        if self._since is None or (self._writes_only and not wrote):
            return
        seconds, requests = self._clock() - self._since, self._requests
        self._since, self._requests = None, 0
        _log.warning("the store works again after %.1f s; requests served without it: %d", seconds, requests)
