"""Where the window of a model comes from, and what refusals for length teach.

The window is that of the request, the settings, the upstream's own statement, or the table of models, in this order.
A refusal that stated a smaller window replaces the last two. Without any of these the window is unknown.

A refusal that states the window in a number lowers the window of its model, for the tenant that was refused. It holds
for `ttl` seconds, or until a longer prompt is accepted, or until the server states another window than it did at the
refusal: it may have been restarted with a larger one. So the server is asked anew after a refusal, and a lesson is only
kept where the server states nothing, or more than it takes, as a list of what models were made for does.

A lesson is kept in memory, and in the store as a fact that belongs to no session, so replicas share it, also that it is
forgotten, and a restart keeps it. A request that stores nothing shares nothing. Lessons are shared in the background;
only the first request for a model waits a moment for those of others (`Servers.known`).

A refusal without a number teaches no window, because only the upstream knows what it has counted. The size that was
refused bounds one session (`SizeRefused`), which the session keeps. Only that of a session which is not stored is kept
here, in memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import MAX_SCOPES, LessonScope
from proxy.store.access import Facts
from proxy.tokens.models import StatedWindow

FRESH = 30.0  # seconds until the store is read again for what other processes have learned
REFUSED_FOR = 3_600.0  # seconds for which a size that was refused bounds its session
UNKNOWN, REQUEST, SETTINGS = "unknown", "request", "settings"
SOURCE = "stated in a refusal"
_VERSION = 4
_WHAT = "what was learned of a window"

_log = logging.getLogger(__name__)


SIZE_REFUSED = "size_refused"
"""The name of the trait (`proxy/condensing/traits`)."""


class SizeRefused(NamedTuple):
    """The size of a view that was refused for its length without a number."""

    model: str
    tokens: int  # as we expected the upstream to count it
    until: float  # when it is forgotten, in seconds since the epoch
    upstream: str = ""  # the address of the upstream that refused it
    own: int = 0  # the same tokens by our own count, which stays as it is when calibration learns


class LearnedWindow(NamedTuple):
    tokens: int
    until: float  # when it expires, in seconds since the epoch
    stated: int | None  # the window that the server stated at the refusal, if it stated one


class Window(NamedTuple):
    """A window, and where it comes from."""

    tokens: int | None  # the context length in tokens; None if it is unknown
    source: str  # where it comes from, in words
    max_input: int | None = None  # the limit in tokens for the prompt alone, if there is one

    @property
    def is_set(self) -> bool:
        """Whether the request or the settings give the window, so the server need not be asked."""
        return self.source == REQUEST or self.source.startswith(SETTINGS)

    @property
    def is_known(self) -> bool:
        """Whether it was set, or stated by the server itself or told in a refusal: enough to refuse a request."""
        return self.is_set or self.source.startswith("stated")

    def lowered(self, stated: int) -> Window:
        """This window, or the one that a refusal states if that is smaller."""
        if self.tokens is not None and self.tokens <= stated:
            return self
        return Window(stated, SOURCE, self.max_input)


@dataclass(slots=True)
class _ScopeState:
    """The knowledge of this process about one model, for one tenant."""

    window: LearnedWindow | None = None
    shared: LearnedWindow | None = None  # the window that the store had when it was last read or written
    read_at: float | None = None  # when the store was last read, in seconds since the epoch


@dataclass(slots=True, eq=False)
class LearnedWindows:
    """What upstreams have taught by refusals for length; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch. `stated` gives the window that a server last stated;
    `ask_anew` returns when it has been asked again.
    """

    facts: Facts
    tasks: OwnedTasks
    ttl: int
    clock: Callable[[], float]
    stated: Callable[[LessonScope], StatedWindow | None]
    ask_anew: Callable[[LessonScope], Awaitable[object]]
    sizes: Lru[tuple[LessonScope, str], SizeRefused] = field(default_factory=lambda: Lru(MAX_SCOPES))
    """The sizes refused of sessions that are not stored, by model, tenant and the session's id."""
    _states: Lru[LessonScope, _ScopeState] = field(default_factory=lambda: Lru(MAX_SCOPES))
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def window(self, scope: LessonScope) -> LearnedWindow | None:
        """The window that holds for a model and tenant, if one was taught; one that has ended does not come back."""
        state = self._states.get(scope)
        if state is None or state.window is None:
            return None
        stated = self.stated(scope)
        if state.window.until <= self.clock() or (stated is not None and stated.window != state.window.stated):
            state.window = None
        return state.window

    def known(self) -> Iterator[tuple[LessonScope, LearnedWindow]]:
        """All windows that hold."""
        for scope in self._states:
            if (window := self.window(scope)) is not None:
                yield scope, window

    def refresh(self, scope: LessonScope) -> Sequence[Hashable]:
        """Starts reading what others have learned, if that is due; returns the keys of the tasks that read it first."""
        now, state, key = self.clock(), self._state(scope), ("learned", scope)
        if state.read_at is not None and 0 <= now - state.read_at < FRESH:
            return ()
        is_first, state.read_at = state.read_at is None, now
        self.tasks.start(self.read(scope), key)
        return (key,) if is_first else ()

    def learn(self, scope: LessonScope, tokens: int, *, shares: bool = True) -> None:
        """Learns the window that a refusal states; a smaller one stays. With `shares`, replicas learn it too."""
        before, stated = self.window(scope), self.stated(scope)
        if before is not None and before.tokens < tokens:
            return
        self._state(scope).window = LearnedWindow(tokens, self.clock() + self.ttl, stated and stated.window)
        if before is None or before.tokens > tokens:
            _log.warning("window of %s: %d tokens, as the upstream said when it refused a prompt", scope.named, tokens)
        if shares:
            self._share(scope)

    def accepted(self, scope: LessonScope, counted: int, *, shares: bool = True) -> None:
        """Forgets a window that is smaller than a prompt that was accepted, by the upstream's count."""
        window = self.window(scope)
        if window is None or counted <= window.tokens:
            return
        self._state(scope).window = None
        _log.warning("window of %s: no longer %d tokens, because %d were accepted", scope.named, window.tokens, counted)
        if shares:
            self._share(scope)

    def _state(self, scope: LessonScope) -> _ScopeState:
        return self._states.use(scope) or self._states.put(scope, _ScopeState())

    def _name(self, scope: LessonScope) -> str:
        return f"window-{blake2b(json.dumps(scope).encode(), digest_size=16).hexdigest()}"

    def _share(self, scope: LessonScope) -> None:
        """Starts writing to the store what is known; an app that closes lets that finish."""
        self.tasks.own(self._write(scope), to_its_end=True)

    async def _write(self, scope: LessonScope) -> None:
        await self.ask_anew(scope)
        # One after the other, so that no write of an older window comes last.
        async with self._writing:
            state, window = self._state(scope), self.window(scope)
            if window is not None and window.stated is not None and window.stated <= window.tokens:
                window = None  # other processes hear as much from the server itself, and hear of another one in time
            fact = json.dumps({"v": _VERSION, "window": window}).encode()
            if await self.facts.put(self._name(scope), fact, self.ttl, _WHAT):
                state.shared = window

    async def read(self, scope: LessonScope) -> None:
        """Takes over what another process knows, if its window is not larger than ours, or if we know none.

        A window that the store had is forgotten once another process has forgotten it.
        """
        fact = await self.facts.get(self._name(scope), _WHAT)
        try:
            document = json.loads(fact) if fact is not None else {"v": None}
            if document["v"] != _VERSION:
                return
            stated = document["window"]
            theirs = LearnedWindow(int(stated[0]), float(stated[1]), stated[2] and int(stated[2])) if stated else None
        except (ValueError, LookupError, TypeError):
            _log.warning("a learned window in the store cannot be read")
            return
        ours, state = self.window(scope), self._state(scope)
        if theirs is None:
            # One that is not in the store yet was learned since.
            state.window = None if state.window == state.shared else state.window
        elif theirs.until > self.clock() and (ours is None or theirs.tokens <= ours.tokens):
            state.window = state.shared = theirs
