"""The windows of models, learned from an upstream that refused a prompt or silently read only a part of one.

A window is kept by upstream and model: in memory, and in the store as a fact that belongs to no session, so replicas
share it and a restart keeps it. A learned window only ever lowers the known one, and only a lower one replaces it. It
expires, because a server may have been restarted with a larger window. A longer prompt that is read whole disproves it
at once.

A refusal that names no number teaches a guess: nine tenths of what was refused, but never less than what has passed
before. The next refusal lowers the guess further.

No request waits for the store here: lessons are shared in the background.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from proxy.discovery import WindowLookup, no_stated_window
from proxy.learning.truncation import MOST_REPLIES, CountedReply, kept_by
from proxy.overflow import Refusal
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError

GUESS = 0.9  # of the length of a prompt that was refused without a number
FRESH = 30.0  # seconds until the store is read again for what other processes have learned
MOST_MODELS = 1_000
_VERSION = 2

_log = logging.getLogger(__name__)


class Origin(StrEnum):
    """How a window was learned."""

    OVERFLOW = "overflow"
    GUESS = "guess"
    TRUNCATION = "truncation"


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """A window that an upstream has taught."""

    tokens: int
    """In tokens of the upstream."""
    origin: Origin
    until: float
    """When it expires, in seconds since the epoch."""

    @property
    def source(self) -> str:
        """Where the window comes from, in words."""
        return f"learned: {self.origin}"

    def disproved_by(self, expected: int, counted: int) -> bool:
        """Whether a prompt that was read whole is longer than the window.

        A guess was made from our own expected count, so it is compared with that.
        """
        return self.tokens < (expected if self.origin is Origin.GUESS else counted)


@dataclass(slots=True)
class _ModelState:
    """The knowledge of this process about one model."""

    window: LearnedWindow | None = None
    replies: deque[CountedReply] = field(default_factory=lambda: deque(maxlen=MOST_REPLIES))
    """The latest replies, oldest first."""
    highest: int = 0
    """The highest count that the upstream has given for a prompt."""
    longest_passed: int = 0
    """Tokens of the longest prompt that passed, as the upstream was expected to count it."""
    read_at: float | None = None
    """When the store was last read, in seconds since the epoch."""
    is_sharing: bool = False
    """Whether a task is writing to the store."""


class LearnedWindows:
    """The windows that one upstream has taught; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch, `loaded` the window that the server reports for a model.
    """

    def __init__(
        self,
        upstream: str,
        stored: StoredSessions,
        tasks: OwnedTasks[Any],
        ttl: int,
        clock: Callable[[], float],
        loaded: WindowLookup = no_stated_window,
    ) -> None:
        self._upstream = upstream
        self._stored = stored
        self._tasks = tasks
        self._ttl = ttl
        self._clock = clock
        self._loaded = loaded
        self._models: Lru[str, _ModelState] = Lru(MOST_MODELS)

    def window(self, model: str) -> LearnedWindow | None:
        """The learned window of a model, unless it has expired."""
        state = self._models.get(model)
        return self._unexpired(state.window) if state else None

    def truncated_at(self, model: str) -> int | None:
        """The count that the upstream gives for each prompt that it truncates; None unless it is known to truncate."""
        window = self.window(model)
        return window.tokens if window is not None and window.origin is Origin.TRUNCATION else None

    def longest_passed(self, model: str) -> int:
        """The longest prompt that this process saw pass, in tokens as we expected them to be counted; 0 for none."""
        state = self._models.get(model)
        return state.longest_passed if state else 0

    def refresh(self, model: str) -> Sequence[Hashable]:
        """Starts reading what other processes have learned, if it is time for that.

        Returns the key of the task if this is the first read for the model, so that the request can wait for it.
        """
        state, now = self._state(model), self._clock()
        if state.read_at is not None and 0 <= now - state.read_at < FRESH:
            return ()
        is_first, state.read_at = state.read_at is None, now
        key = ("learned", model)
        self._tasks.start(self._read(model), key)
        return (key,) if is_first else ()

    def learn_from_refusal(self, model: str, refusal: Refusal, sent: int, *, shares: bool = True) -> LearnedWindow:
        """Learns from a refusal of a prompt that the upstream was expected to count as `sent` tokens.

        Unless it `shares`, only this process learns: nothing of a request that may not be stored reaches the store.
        """
        if refusal.window is not None:
            tokens, origin = refusal.window, Origin.OVERFLOW
        else:
            tokens, origin = max(int(GUESS * (refusal.prompt_tokens or sent)), self.longest_passed(model)), Origin.GUESS
        learned = self._lower(model, tokens, origin)
        if shares:
            self._share(model)
        return learned

    def learn_from_usage(self, model: str, expected: int, reply: CountedReply, *, shares: bool = True) -> int | None:
        """Learns from the usage of a reply to a prompt that the upstream was expected to count as `expected` tokens.

        Returns the tokens that the upstream keeps of such a prompt if it is proven to truncate, else None.
        """
        state, stated = self._state(model), self._loaded(model)
        state.replies.append(reply)
        state.highest = max(state.highest, reply.counted)
        before, kept = state.window, kept_by(state.replies, state.highest, stated.window if stated else None)
        if kept is not None:
            self._lower(model, kept, Origin.TRUNCATION)
        else:
            _note_read_whole(state, expected, reply.counted)
        if shares and before != state.window:
            self._share(model)
        return kept

    def _lower(self, model: str, tokens: int, origin: Origin) -> LearnedWindow:
        state = self._state(model)
        learned = LearnedWindow(tokens, origin, self._clock() + self._ttl)
        before = self._unexpired(state.window)
        if before is not None and before.tokens < tokens:
            learned = replace(before, until=learned.until)
        state.window = learned
        return learned

    def _unexpired(self, window: LearnedWindow | None) -> LearnedWindow | None:
        return window if window is not None and window.until > self._clock() else None

    def _state(self, model: str) -> _ModelState:
        return self._models.use(model, _ModelState)

    def _name(self, model: str) -> str:
        return f"window-{blake2b(json.dumps([self._upstream, model]).encode(), digest_size=16).hexdigest()}"

    def _share(self, model: str) -> None:
        """Starts writing to the store what is known of a model; an app that closes lets that finish."""
        state = self._state(model)
        if not state.is_sharing:
            state.is_sharing = True
            self._tasks.own(self._write(model, state), to_its_end=True)

    async def _write(self, model: str, state: _ModelState) -> None:
        """Writes to the store what is known, including what is learned meanwhile; a failure is only logged."""
        written = b""
        try:
            while (fact := _encoded(state)) != written:
                await self._stored.in_time(self._stored.store.put_fact(self._name(model), fact, self._ttl))
                written = fact
        except StoreError as error:
            self._stored.outage.failed("what was learned of a window was not stored", error)
        finally:
            state.is_sharing = False

    async def _read(self, model: str) -> None:
        try:
            fact = await self._stored.in_time(self._stored.store.get_fact(self._name(model)))
        except StoreError as error:
            self._stored.outage.failed("what was learned of a window was not read", error)
            return
        if fact is not None:
            self._merge(self._state(model), fact)

    def _merge(self, state: _ModelState, fact: bytes) -> None:
        """Takes over what another process knows, if its window is no larger, or ours has none."""
        try:
            window = _decoded(fact)
        except (ValueError, LookupError, TypeError):
            _log.warning("what was learned of a window cannot be read")
            return
        theirs, ours = self._unexpired(window), self._unexpired(state.window)
        if theirs is not None and (ours is None or theirs.tokens <= ours.tokens):
            state.window = theirs


def _note_read_whole(state: _ModelState, expected: int, counted: int) -> None:
    """Takes in a prompt that was read whole, as far as is known; it may disprove a window."""
    state.longest_passed = max(state.longest_passed, expected)
    if state.window is not None and state.window.disproved_by(expected, counted):
        state.window = None


def _encoded(state: _ModelState) -> bytes:
    window = state.window and [state.window.tokens, state.window.origin, state.window.until]
    return json.dumps({"v": _VERSION, "window": window}).encode()


def _decoded(fact: bytes) -> LearnedWindow | None:
    """The window in a fact; None if a newer version wrote it. Raises if the data is not a fact."""
    document = json.loads(fact)
    window = document["window"] if document["v"] <= _VERSION else None
    return LearnedWindow(int(window[0]), Origin(window[1]), float(window[2])) if window else None
