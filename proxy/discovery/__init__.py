"""Discovery: the window of a model as the server behind the upstream's address has loaded it.

A model's ceiling is the window that it was trained for; servers load most models with a smaller one. Only windows that
a server has loaded, or that a host says it serves, are used; otherwise the window stays unknown. `pages` reads the
pages of the servers.

Only the address in the settings is asked, with the operator's key or with none: never with a caller's credential, and
never at an address that a request names. No request waits for an answer. Answers are kept for a while, including those
that state no window. A server that loads models on demand is asked again after each reply, because only then has it
surely loaded the model, maybe with another window than the last time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus

from proxy.discovery.pages import PAGES, SLOTS_PAGE, Page, Reading, ServerKind, kind_of, slots_in, windows_in
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.tokens.windows import StatedWindow
from proxy.upstream import Upstream
from proxy.values import json_or_none

MAX_SECONDS = 10.0
"""The time for all pages together."""
MAX_BYTES = 2 * 1024 * 1024
"""Larger pages are not read. The largest known is a host's list of 400 models, 0.7 MB."""
AUTOMATIC_SLOTS = 4
"""The number of slots that llama.cpp chooses without `--parallel`."""
MOMENT = 1.0  # seconds
KEPT = 600.0
SILENCE_KEPT = 900.0
FAILURE_KEPT = 30.0
"""Seconds until a server is asked again: if it stated windows, stated none, or could not be reached."""

_KEY = "discovery"
_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Discovered:
    """The kind and the windows of the upstream's server; one per app.

    Nothing is asked unless `enabled`. `api_key` is the operator's. `clock` gives seconds.
    """

    upstream: Upstream
    tasks: OwnedTasks
    clock: Callable[[], float]
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    enabled: bool = True
    _reading: Reading | None = None
    _page: Page | None = None
    _due: float = float("-inf")

    @property
    def kind(self) -> ServerKind | None:
        """The kind of the upstream's server; None until it is known."""
        return self._reading.kind if self._reading else None

    def window(self, model: str) -> StatedWindow | None:
        """The window that the server last stated for a model; does not ask the server."""
        return self._reading.of(model) if self._reading else None

    def ask_if_due(self) -> None:
        """Asks the server in the background, unless it was asked lately; called when a window is wanted."""
        if self.clock() >= self._due:
            self._start()

    def ask_after_reply(self) -> None:
        """Asks a server again if it may have loaded a model for the request that is over."""
        if self.is_local:
            self._start()

    @property
    def is_local(self) -> bool:
        """Whether the upstream is known to be a local server, which answers one or a few requests at a time."""
        return self._reading is not None and self._reading.kind.is_local

    @property
    def is_serial(self) -> bool:
        """Whether the upstream's server states that it answers one request at a time."""
        return self._reading is not None and self._reading.slots == 1

    def shared_cache(self, model: str) -> int | None:
        """The window of a model, in tokens, if the server's slots share one cache of that size; else None.

        llama.cpp states the same numbers with and without a shared cache. It shares one among the slots whose number it
        has chosen itself.
        """
        reading = self._reading
        stated = reading.of(model) if reading is not None and reading.slots == AUTOMATIC_SLOTS else None
        return stated and stated.window

    async def asked(self) -> None:
        """Returns when the server has been asked, or after a moment: so one that answers late delays nothing else."""
        self.ask_if_due()
        await self.tasks.result_of(_KEY, asyncio.get_running_loop().time() + MOMENT)

    def _start(self) -> None:
        if self.enabled:
            self.tasks.start(self.ask(), _KEY)

    async def ask(self) -> None:
        """Asks now, for at most `MAX_SECONDS`. If the server fails, its earlier answer is kept."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                # The page on which the server stated its windows before, if there is one.
                known = await self._read_pages([self._page], self.kind) if self._page else None
                reading = known or await self._recognise()
                if reading is not None and reading.kind is ServerKind.LLAMA_CPP:
                    _, page = await self._fetch(SLOTS_PAGE, beside_v1=True)
                    reading = replace(reading, slots=slots_in(page))
        except (UpstreamUnavailable, TimeoutError):
            self._due = self.clock() + FAILURE_KEPT
            return
        self._due = self.clock() + (KEPT if reading else SILENCE_KEPT)
        if reading is not None:
            if reading.kind is not self.kind:
                _log.info("the upstream reports its context length like %s", reading.kind)
            self._reading = reading.after(self._reading)

    async def _recognise(self) -> Reading | None:
        """The kind of the server by its model list, and its windows from there or from its own pages."""
        status, listed = await self._fetch("/models", beside_v1=False)
        if status in _REFUSED:
            return None
        kind = kind_of(listed)
        found = windows_in(listed) or await self._read_pages(
            (page for page in PAGES if kind in (None, page.kind)), kind
        )
        return found or (Reading(kind) if kind else None)

    async def _read_pages(self, pages: Iterable[Page], kind: ServerKind | None) -> Reading | None:
        """The first page that states a window, else the first of a server of this kind."""
        silent: Reading | None = None
        for page in pages:
            _, data = await self._fetch(page.path, beside_v1=True)
            reading = page.read(data, kind)
            if reading is not None and (silent is None or not reading.is_silent):
                self._page, silent = page, reading
            if reading is not None and not reading.is_silent:
                return reading
        return silent

    async def _fetch(self, path: str, *, beside_v1: bool) -> tuple[int, object]:
        """The status of a page and its JSON value, which is None if it could not be read."""
        headers: Headers = [(b"authorization", b"Bearer " + self.api_key.encode())] if self.api_key else []
        reply = await self.upstream.page(path, headers, MAX_SECONDS, MAX_BYTES, beside_v1=beside_v1)
        return reply.status, json_or_none(reply.body) if reply.status == HTTPStatus.OK else None
