"""Asks the upstream's server for the windows of its models, in the background, and keeps what it said.

Only the address of the settings is asked, with the operator's key or with none: never with a caller's credential, and
never at an address that a request names. No request waits for an answer. What was said is kept for a while, and that
nothing was said as well; a server that loads models on demand is asked again after each reply, since only then is the
model surely loaded, and maybe with another window than the last time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from proxy.discovery.listing import kind_of, windows_in
from proxy.discovery.reading import Found, Kind, Reading
from proxy.discovery.servers import PAGES, Page
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.request.loose_json import json_or_none
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.upstream import Upstream

MOST_SECONDS = 10.0
"""For all pages together."""
MOST_BYTES = 2 * 1024 * 1024
"""Of one page; longer ones are not read. The longest that is known is a host's list of 400 models, 0.7 MB."""
KEPT = 600.0
SILENCE_KEPT = 900.0
FAILURE_KEPT = 30.0
"""Seconds until a server is asked again that stated windows, that stated none, and that could not be reached."""

_KEY = "discovery"
_REFUSED = (401, 403)
_log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    status: int
    data: object


class Discovered:
    """What is known of the upstream's server; one per app. Where it is not `enabled`, nothing is asked.

    `api_key` is the operator's. `clock` gives seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        tasks: OwnedTasks[Any],
        clock: Callable[[], float],
        *,
        api_key: str | None = None,
        enabled: bool = True,
    ) -> None:
        self._upstream = upstream
        self._tasks = tasks
        self._clock = clock
        self._headers: Headers = [(b"authorization", b"Bearer " + api_key.encode())] if api_key else []
        self._enabled = enabled
        self._reading: Reading | None = None
        self._page: Page | None = None
        self._due = float("-inf")
        self._has_replied = False

    @property
    def kind(self) -> Kind | None:
        """The kind of the upstream's server; None until it is known."""
        return self._reading.kind if self._reading else None

    def window(self, model: str) -> Found | None:
        """What the server last said of a model; asks nothing."""
        return self._reading.of(model) if self._reading else None

    def noticed(self) -> None:
        """A window is wanted: has the server asked, unless it was asked lately."""
        if self._clock() >= self._due:
            self._start()

    def replied(self) -> None:
        """A request is over: has a server asked again that may have loaded a model for it."""
        self._has_replied = True
        if self.is_local:
            self._start()

    @property
    def is_local(self) -> bool:
        """Whether the upstream was found to be a server that answers one or a few requests at a time."""
        return self.kind is not None and self.kind.is_local

    def _start(self) -> None:
        if self._enabled:
            self._tasks.start(self._follow_up(), _KEY)

    async def _follow_up(self) -> None:
        """Asks, and once more where a request was over meanwhile: what was said may be from before it."""
        self._has_replied = False
        await self.ask()
        if self._has_replied and self.is_local:
            await self.ask()

    async def ask(self) -> None:
        """Asks now, for `MOST_SECONDS` at most. A server that fails leaves what it said before."""
        try:
            async with asyncio.timeout(MOST_SECONDS):
                reading = await self._again() or await self._recognised()
        except (UpstreamUnavailable, TimeoutError):
            self._due = self._clock() + FAILURE_KEPT
            return
        self._due = self._clock() + (KEPT if reading else SILENCE_KEPT)
        if reading is not None:
            if reading.kind is not self.kind:
                _log.info("the upstream states windows as %s does", reading.kind)
            self._reading = reading.after(self._reading)

    async def _again(self) -> Reading | None:
        """What stands now on the page where the server stated its windows before."""
        return await self._on_pages([self._page]) if self._page else None

    async def _recognised(self) -> Reading | None:
        """The server's kind by its model list, and its windows from there or from its own pages."""
        status, listed = await self._fetched("/models", beside_v1=False)
        if status in _REFUSED:
            return None
        kind = kind_of(listed)
        found = windows_in(listed) or await self._on_pages(page for page in PAGES if kind in (None, page.kind))
        return found or (Reading(kind) if kind else None)

    async def _on_pages(self, pages: Iterable[Page]) -> Reading | None:
        """The first reading that knows a window, else the first at all."""
        silent: Reading | None = None
        for page in pages:
            reading = page.read((await self._fetched(page.path, beside_v1=True)).data)
            if reading is not None and (silent is None or not reading.is_silent):
                self._page, silent = page, reading
            if reading is not None and not reading.is_silent:
                return reading
        return silent

    async def _fetched(self, path: str, *, beside_v1: bool) -> _Answer:
        reply = await self._upstream.page(path, self._headers, MOST_SECONDS, MOST_BYTES, beside_v1=beside_v1)
        return _Answer(reply.status, json_or_none(reply.body) if reply.status == 200 else None)
