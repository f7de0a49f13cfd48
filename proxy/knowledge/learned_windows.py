"""The windows of models, learned from an upstream that refused a prompt or silently read only a part of one.

A window is kept by upstream, model and scope: in memory, and in the store as a fact that belongs to no session, so
replicas share it and a restart keeps it. It holds for the tenant that was taught, and for everyone only if the refusal
is proof for everyone (`profiles`). A learned window only ever lowers the known one, and only a lower one replaces it.
It expires, because a server may have been restarted with a larger window. A longer prompt that is read whole disproves
it at once; now and then a request is sent to try that.

A refusal that names no number teaches a guess: nine tenths of what was refused, but never less than what has passed
before. The next refusal lowers the guess further.

Silent truncation is an answer of an upstream that has read only the newest part of the prompt. A count that is merely
lower than ours does not prove it: it may come from another tokenizer, or from cheaper images. There are two proofs: the
upstream counts the same for three prompts of clearly different length, and has never counted more; or it counts a
clearly longer prompt as exactly the window that its server reports as loaded.

No request waits for the store here: lessons are shared in the background.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from proxy.knowledge.profiles import LessonScope
from proxy.overflow import Refusal
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.access import Facts
from proxy.tokens.windows import WindowLookup, no_stated_window

GUESS = 0.9  # of the length of a prompt that was refused without a number
TRIAL = 900.0  # seconds between two trials of a window
FRESH = 30.0  # seconds until the store is read again for what other processes have learned
MAX_SCOPES = 4_000
MAX_REPLIES = 16
PROMPTS = 3
"""Prompts of clearly different length that must have been counted the same."""
CLEARLY = 1.05
"""A prompt is clearly longer than another if it has this many times its tokens."""
MIN_KEPT = 1_024
"""Tokens; no server is started with a smaller window, so a smaller constant count is made up."""
MAX_FOR_ONE = 2
"""Maximum upstream tokens for each token that we count; a server that reports more has made its count up."""
_VERSION = 2
_WHAT = "what was learned of a window"

_log = logging.getLogger(__name__)


class Origin(StrEnum):
    OVERFLOW = "overflow"
    GUESS = "guess"
    TRUNCATION = "truncation"


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    tokens: int
    origin: Origin
    until: float
    """When it expires, in seconds since the epoch."""

    @property
    def source(self) -> str:
        """Where the window comes from, in words."""
        return f"learned: {self.origin}"

    def disproved_by(self, expected: int, counted: int) -> bool:
        """Whether a prompt that was read whole is longer than the window."""
        # A guess was made from our own expected count.
        return self.tokens < (expected if self.origin is Origin.GUESS else counted)


class CountedReply(NamedTuple):
    own: int
    """Our own count, without calibration."""
    counted: int
    exact: bool = True
    """Whether ours is a count, not an estimate by length."""


@dataclass(slots=True)
class _ScopeState:
    """The knowledge of this process about one model in one scope."""

    window: LearnedWindow | None = None
    replies: deque[CountedReply] = field(default_factory=lambda: deque(maxlen=MAX_REPLIES))
    highest: int = 0
    longest_passed: int = 0
    """Tokens of the longest prompt that passed, as the upstream was expected to count it."""
    read_at: float | None = None
    """When the store was last read, in seconds since the epoch."""
    tried_at: float = 0.0
    """When the window was learned or last tried, in seconds since the epoch."""


@dataclass(slots=True, eq=False)
class LearnedWindows:
    """The windows that one upstream has taught; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch. `loaded` gives the window that the server reports.
    """

    upstream: str
    facts: Facts
    tasks: OwnedTasks
    ttl: int
    clock: Callable[[], float]
    loaded: WindowLookup = no_stated_window
    _state: Callable[[LessonScope], _ScopeState] = field(
        default_factory=lambda: lru_cache(MAX_SCOPES)(lambda _: _ScopeState())
    )
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _has_taught: bool = False  # stays so for most upstreams, whose requests then need not look any further

    def window(self, scope: LessonScope) -> LearnedWindow | None:
        """The smallest unexpired window that holds for a tenant."""
        if not self._has_taught:
            return None
        known = [self._unexpired(state.window) for state in self._known(scope)]
        return min(filter(None, known), key=lambda window: window.tokens, default=None)

    def truncated_at(self, scope: LessonScope) -> int | None:
        """The count that the upstream gives for each prompt that it truncates; None unless it is known to truncate."""
        window = self.window(scope) if self._has_taught else None
        return window.tokens if window is not None and window.origin is Origin.TRUNCATION else None

    def longest_passed(self, scope: LessonScope) -> int:
        """The longest prompt that this process saw pass, in tokens as we expected them to be counted; 0 for none."""
        return self._state(scope).longest_passed

    def takes_trial(self, scope: LessonScope) -> bool:
        """Whether a request may now be sent as a trial of the learned window; if so, the next one waits for `TRIAL`.

        A truncation is tried only by its expiry: a trial would silently cost the client its oldest messages.
        """
        now, states = self.clock(), self._known(scope)
        if self.truncated_at(scope) is not None or any(0 <= now - state.tried_at < TRIAL for state in states):
            return False
        for state in states:
            state.tried_at = now
        return bool(states)

    def _known(self, scope: LessonScope) -> list[_ScopeState]:
        """The states in which this tenant and everyone have learned something."""
        states = [self._state(learner) for learner in dict.fromkeys((scope, scope.everyone))]
        return [state for state in states if state.window is not None]

    def refresh(self, scope: LessonScope) -> Sequence[Hashable]:
        """Starts reading what others have learned, if that is due; returns the keys of the tasks that read it first."""
        now, first = self.clock(), []
        for learner in (scope, scope.everyone):
            state, key = self._state(learner), ("learned", learner)
            if state.read_at is not None and 0 <= now - state.read_at < FRESH:
                continue
            if state.read_at is None:
                first.append(key)
            state.read_at = now
            self.tasks.start(self._read(learner), key)
        return first

    def learn_from_refusal(
        self, scope: LessonScope, refusal: Refusal, sent: int, *, shares: bool = True, proven: bool = False
    ) -> LearnedWindow:
        """Learns from a refusal of a prompt that the upstream was expected to count as `sent` tokens.

        A window that is `proven` without the request's text holds for everyone. A guess never does, because the caller
        chooses its length. Unless it `shares`, only this process learns.
        """
        if refusal.window is not None:
            tokens, origin = refusal.window, Origin.OVERFLOW
            scope = scope.everyone if proven else scope
        else:
            tokens, origin = max(int(GUESS * (refusal.prompt_tokens or sent)), self.longest_passed(scope)), Origin.GUESS
        learned = self._lower(scope, tokens, origin)
        if shares:
            self._share(scope)
        return learned

    def learn_from_usage(
        self, scope: LessonScope, expected: int, reply: CountedReply, *, shares: bool = True
    ) -> int | None:
        """Learns from the usage of a reply to a prompt that the upstream was expected to count as `expected` tokens.

        Returns the tokens that the upstream keeps of such a prompt if it is proven to truncate, else None.
        """
        state, stated = self._state(scope), self.loaded(scope.model)
        state.replies.append(reply)
        state.highest = max(state.highest, reply.counted)
        kept = kept_by(state.replies, state.highest, stated.window if stated else None)
        if kept is not None:
            self._lower(scope, kept, Origin.TRUNCATION)
            if shares:
                self._share(scope)
        else:
            state.longest_passed = max(state.longest_passed, expected)
            if self._has_taught:
                self._disprove(scope, expected, reply.counted, shares=shares)
        return kept

    def _disprove(self, scope: LessonScope, expected: int, counted: int, *, shares: bool) -> None:
        """Forgets windows that are smaller than a prompt that was read whole, as far as is known."""
        for learner in (scope, scope.everyone):
            state = self._state(learner)
            if state.window is not None and state.window.disproved_by(expected, counted):
                state.window = None
                if shares:
                    self._share(learner)

    def _lower(self, scope: LessonScope, tokens: int, origin: Origin) -> LearnedWindow:
        state = self._state(scope)
        learned = LearnedWindow(tokens, origin, self.clock() + self.ttl)
        before = self._unexpired(state.window)
        if before is not None and before.tokens < tokens:
            learned = replace(before, until=learned.until)
        state.window, state.tried_at, self._has_taught = learned, self.clock(), True
        return learned

    def _unexpired(self, window: LearnedWindow | None) -> LearnedWindow | None:
        return window if window is not None and window.until > self.clock() else None

    def _name(self, scope: LessonScope) -> str:
        return f"window-{blake2b(json.dumps([self.upstream, *scope]).encode(), digest_size=16).hexdigest()}"

    def _share(self, scope: LessonScope) -> None:
        """Starts writing to the store what is known of a scope; an app that closes lets that finish."""
        self.tasks.own(self._write(scope), to_its_end=True)

    async def _write(self, scope: LessonScope) -> None:
        # One after the other, so that no write of an older window comes last.
        async with self._writing:
            known = self._state(scope).window
            window = known and [known.tokens, known.origin, known.until]
            fact = json.dumps({"v": _VERSION, "window": window}).encode()
            await self.facts.put(self._name(scope), fact, self.ttl, _WHAT)

    async def _read(self, scope: LessonScope) -> None:
        """Takes over what another process knows, if its window is not larger than ours, or if we know none."""
        fact, state = await self.facts.get(self._name(scope), _WHAT), self._state(scope)
        try:
            theirs = self._unexpired(_decoded(fact) if fact is not None else None)
        except (ValueError, LookupError, TypeError):
            _log.warning("what was learned of a window cannot be read")
            return
        ours = self._unexpired(state.window)
        if theirs is not None and (ours is None or theirs.tokens <= ours.tokens):
            state.window, state.tried_at, self._has_taught = theirs, state.tried_at or self.clock(), True


def _decoded(fact: bytes) -> LearnedWindow | None:
    """The window in a fact; None if a newer version wrote it. Raises if the data is not a fact."""
    document = json.loads(fact)
    window = document["window"] if document["v"] <= _VERSION else None
    return LearnedWindow(int(window[0]), Origin(window[1]), float(window[2])) if window else None


def kept_by(replies: Sequence[CountedReply], highest: int = 0, loaded: int | None = None) -> int | None:
    """The tokens that an upstream keeps of a longer prompt; None unless its latest replies prove that it truncates.

    The replies are those of one model, oldest first; `highest` is the highest count that the upstream has ever given
    for the model, `loaded` the window that its server reports.
    """
    last = replies[-1]
    if last.counted == loaded and last.own >= CLEARLY * last.counted:
        return loaded
    if last.counted < max(highest, MIN_KEPT):
        return None
    lengths = sorted([reply.own for reply in replies if (reply.counted, reply.exact) == (last.counted, last.exact)])
    is_possible = lengths[0] * MAX_FOR_ONE >= last.counted
    number = longest = 0
    for length in lengths:
        if length >= CLEARLY * longest:
            number, longest = number + 1, length
    return last.counted if is_possible and number >= PROMPTS else None
