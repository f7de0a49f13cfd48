"""What was learned of a model's window: from an upstream that refused a prompt, or silently kept only a part of one.

It is known by upstream and model, in memory and, as a fact that belongs to no session, in the store: so replicas share
it and a restart keeps it. A window that was learned only ever lowers what is known otherwise, and only lower ones take
its place; after its time it is forgotten, for a server may have been started anew with more. A prompt that passes whole
although it is longer than the learned window disproves that at once.

A refusal that names no number teaches a guess: nine tenths of what was refused, but never less than what has passed
before. The next refusal lowers it further.

Nobody waits for the store here: what is learned is shared in the background.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from proxy.learning.truncation import CountedReply, Judged, Suspicion, clears, judged, suspected
from proxy.overflow import Refusal
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError

GUESS = 0.9  # of what was refused without a number
FRESH = 30.0  # seconds after which the store is asked again what others have learned
MOST_MODELS = 1_000
_VERSION = 1

_log = logging.getLogger(__name__)


class Origin(StrEnum):
    """How a window was learned."""

    OVERFLOW = "overflow"
    GUESS = "guess"
    TRUNCATION = "truncation"


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    """A window in tokens of the upstream, forgotten at `until`, in seconds since the epoch."""

    tokens: int
    origin: Origin
    until: float

    @property
    def source(self) -> str:
        """Where it is known from, in words."""
        return f"learned: {self.origin}"

    def disproved_by(self, reply: CountedReply) -> bool:
        """Whether a prompt that was read whole is longer; a guess was of what we expect, and is held against that."""
        return self.tokens < (reply.sent if self.origin is Origin.GUESS else reply.counted)


@dataclass(slots=True)
class _Known:
    """What is known of one model here: the longest prompt that `passed`, as it was expected to count, and the one that
    was read `whole`, as it was counted; `read_at` is when the store was asked, `is_told` whether it is being told."""

    window: LearnedWindow | None = None
    suspect: CountedReply | None = None
    last: CountedReply | None = None
    passed: int = 0
    whole: int = 0
    read_at: float | None = None
    is_told: bool = False


class LearnedWindows:
    """The windows that one upstream has taught; one per app. `ttl` in seconds, `clock` in seconds since the epoch."""

    def __init__(
        self,
        upstream: str,
        stored: StoredSessions,
        tasks: OwnedTasks[Any],
        ttl: int,
        clock: Callable[[], float],
    ) -> None:
        self._upstream = upstream
        self._stored = stored
        self._tasks = tasks
        self._ttl = ttl
        self._clock = clock
        self._models: Lru[str, _Known] = Lru(MOST_MODELS)

    def window(self, model: str) -> LearnedWindow | None:
        """What was learned of a model and still holds."""
        known = self._models.get(model)
        return self._alive(known.window) if known else None

    def passed(self, model: str) -> int:
        """Tokens of the longest prompt that this process saw pass, as they were expected to be counted; 0 for none."""
        known = self._models.get(model)
        return known.passed if known else 0

    def refresh(self, model: str) -> Sequence[Hashable]:
        """Has what others have learned read now and then; the key of the work where it is the first look."""
        known, now = self._known(model), self._clock()
        if known.read_at is not None and 0 <= now - known.read_at < FRESH:
            return ()
        is_first, known.read_at = known.read_at is None, now
        key = ("learned", model)
        self._tasks.start(self._read(model), key)
        return (key,) if is_first else ()

    def refused(self, model: str, refusal: Refusal, sent: int, *, shares: bool = True) -> LearnedWindow:
        """What a refusal of a prompt teaches that the upstream was expected to count as `sent` tokens.

        Where one may not be told of the request, it `shares` nothing, and this process alone has learned.
        """
        if refusal.window is not None:
            tokens, origin = refusal.window, Origin.OVERFLOW
        else:
            tokens, origin = max(int(GUESS * (refusal.counted or sent)), self.passed(model)), Origin.GUESS
        learned = self._lowered(model, tokens, origin)
        if shares:
            self._share(model)
        return learned

    def replied(self, model: str, reply: CountedReply, *, shares: bool = True) -> Judged:
        """What a reply says: that its prompt was read whole, or the first or second sign that it was not."""
        known = self._known(model)
        said = judged(reply, known.suspect, known.last, known.whole)
        known.last, before = reply, (known.window, known.suspect)
        match said.standing:
            case Suspicion.WHOLE:
                _read_whole(known, reply)
            case Suspicion.SUSPECT:
                known.suspect = suspected(reply, known.suspect)
            case Suspicion.CONFIRMED:
                self._lowered(model, said.kept, Origin.TRUNCATION)
        if shares and before != (known.window, known.suspect):
            self._share(model)
        return said

    def _lowered(self, model: str, tokens: int, origin: Origin) -> LearnedWindow:
        known = self._known(model)
        learned = LearnedWindow(tokens, origin, self._clock() + self._ttl)
        before = self._alive(known.window)
        if before is not None and before.tokens < tokens:
            learned = replace(before, until=learned.until)
        known.window = learned
        return learned

    def _alive(self, window: LearnedWindow | None) -> LearnedWindow | None:
        return window if window is not None and window.until > self._clock() else None

    def _known(self, model: str) -> _Known:
        return self._models.use(model, _Known)

    def _name(self, model: str) -> str:
        return f"window-{blake2b(json.dumps([self._upstream, model]).encode(), digest_size=16).hexdigest()}"

    def _share(self, model: str) -> None:
        """Has the store told what is known of a model; nobody waits for that, and an app that closes lets it end."""
        known = self._known(model)
        if not known.is_told:
            known.is_told = True
            self._tasks.own(self._tell(model, known), to_its_end=True)

    async def _tell(self, model: str, known: _Known) -> None:
        """Tells the store what is known, also what is learned meanwhile; where it fails, this process knows it."""
        told = b""
        try:
            while (fact := _encoded(known)) != told:
                await self._stored.in_time(self._stored.store.remember(self._name(model), fact, self._ttl))
                told = fact
        except StoreError as error:
            _log.warning("what was learned of a window was not stored: %s", error)
        finally:
            known.is_told = False

    async def _read(self, model: str) -> None:
        try:
            fact = await self._stored.in_time(self._stored.store.recall(self._name(model)))
        except StoreError as error:
            _log.warning("what was learned of a window was not read: %s", error)
            return
        if fact is not None:
            self._take(self._known(model), fact)

    def _take(self, known: _Known, fact: bytes) -> None:
        """Takes over what another process knows, where that is lower or new."""
        try:
            window, suspect = _decoded(fact)
        except (ValueError, LookupError, TypeError):
            _log.warning("what was learned of a window cannot be read")
            return
        theirs, ours = self._alive(window), self._alive(known.window)
        if theirs is not None and (ours is None or theirs.tokens <= ours.tokens):
            known.window = theirs
        known.suspect = known.suspect or suspect


def _read_whole(known: _Known, reply: CountedReply) -> None:
    """Takes in a prompt that was read whole: it may clear a suspicion, and disprove a window."""
    known.passed, known.whole = max(known.passed, reply.sent), max(known.whole, reply.counted)
    if known.suspect is not None and clears(reply, known.suspect):
        known.suspect = None
    if known.window is not None and known.window.disproved_by(reply):
        known.window = None


def _encoded(known: _Known) -> bytes:
    window = known.window and [known.window.tokens, known.window.origin, known.window.until]
    seen = known.suspect
    suspect = seen and [seen.sent, seen.counted, seen.own, seen.exact]
    return json.dumps({"v": _VERSION, "window": window, "suspect": suspect}).encode()


def _decoded(fact: bytes) -> tuple[LearnedWindow | None, CountedReply | None]:
    """The window and the suspicion in a fact, nothing where a newer version wrote it; raises on what is no fact."""
    document = json.loads(fact)
    if document["v"] > _VERSION:
        return None, None
    window, suspect = document["window"], document["suspect"]
    learned = LearnedWindow(int(window[0]), Origin(window[1]), float(window[2])) if window else None
    return learned, _suspect(*suspect) if suspect else None


def _suspect(sent: float, counted: float, own: float | None = None, exact: object = True) -> CountedReply:
    """A suspicion in a fact; an older version has told less of it."""
    return CountedReply(int(sent), int(counted), exact=bool(exact), own=None if own is None else int(own))
