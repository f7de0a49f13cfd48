"""The calibration of one app: what is known before a request is sent, and what its reply teaches.

What is learned about a model is kept in memory, and in the store as a fact that belongs to no session, so replicas
share it and a restart keeps it. It contains counts only, no text. Nothing here waits for the store; if the store fails,
the process still knows what it has learned itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from proxy.knowledge.anchor import Anchor, Calibration, CountedPrompt, calibration_for, longest_anchor
from proxy.knowledge.prices import EVEN, Features, Observation, Samples, decoded, encoded, mean_error, of_messages
from proxy.knowledge.profiles import LessonScope
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.access import Facts
from strategies.core.view import View

FRESH = 60.0  # seconds until the store is read again for what other processes have learned
MAX_MODELS = 256
MAX_ANCHORS = 4_096  # in memory
_SHARE = 8
"""A fit and a write to the store are due once one in this many known observations is new."""
_FEW = 16
"""Observations up to which each new one counts fully, and a fit is quick."""
_EXPECTED = 1 / 32
"""The weight of an observation that the prices predicted, once there are more than a few."""
_LATER = 0.05
"""A slow fit begins this many seconds after a reply."""
_MARGIN, _MIN_ERROR = 3.0, 0.02
"""The assumed error of a count: this many mean errors, but at least this share."""
_MIN_LEFT = 0.7
"""The upstream counts at least this share of a prompt's beginning again: templates drop old reasoning, but no more."""

_log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """How good the estimates for a model are."""

    first: float | None
    """The mean relative error for requests without an anchor; None if too few are known."""
    anchored: float | None
    prices: Features


@dataclass(slots=True)
class _Known:
    """The knowledge of this process about how one model counts, by one counter."""

    samples: Samples = Samples()  # noqa: RUF009 - immutable
    prices: Features = EVEN
    lessons: int = 0
    """Observations that have come to this process."""
    unfitted: float = 0.0
    """How many of them are not in the prices yet; one that was expected counts as a small part."""
    unshared: float = 0.0
    """How many of them are not in the store yet, weighed in the same way."""
    read_at: float | None = None
    """When the store was last read, in seconds since the epoch."""

    @property
    def progress(self) -> Progress:
        return Progress(mean_error(self.samples.firsts), mean_error(self.samples.anchored), self.prices)

    def weight(self, lesson: Observation) -> float:
        """How much an observation counts towards the next fit: one that the prices predict can wait for others."""
        if self.lessons < _FEW:
            return 1.0
        off = abs(lesson.counted - lesson.features.at(self.prices))
        return 1.0 if off > lesson.noise else _EXPECTED


@dataclass(slots=True, eq=False)
class Calibrator:
    """The calibration for one upstream; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch. `report` is called with a model and its progress when
    that changes.
    """

    upstream: str
    facts: Facts
    tasks: OwnedTasks
    _: KW_ONLY
    ttl: int
    clock: Callable[[], float]
    report: Callable[[str, Progress], None]
    _anchors: Lru[tuple[LessonScope, bytes], Anchor] = field(default_factory=lambda: Lru(MAX_ANCHORS))
    """The latest anchors of all conversations, by the chain digest of their node."""
    _models: Callable[[str], defaultdict[str, _Known]] = field(
        default_factory=lambda: lru_cache(MAX_MODELS)(lambda _: defaultdict(_Known))
    )

    def refresh(self, model: str, *counters: str) -> Sequence[Hashable]:
        """Starts reading what others have learned, if that is due; returns the keys of the tasks that read it first."""
        now, first = self.clock(), []
        for counter in counters:
            known, key = self._models(model)[counter], ("calibration-read", model, counter)
            if known.read_at is not None and 0 <= now - known.read_at < FRESH:
                continue
            if known.read_at is None:
                first.append(key)
            known.read_at = now
            self.tasks.start(self._read(model, counter), key)
        return first

    def hidden(self, model: str, *counters: str) -> int:
        """The maximum number of tokens that the upstream may add to a request by itself, as far as is known."""
        known = self._models(model)
        return max([known[counter].prices.hidden for counter in counters])

    def calibrate(self, prompt: CountedPrompt, stored: Anchor | None, window: int | None) -> Calibration:
        """The calibration of a request before it is sent; `stored` is the anchor of its branch, if it has one."""
        scope, counter = prompt.scope, prompt.counter
        known = self._models(scope.model)[counter]
        anchor = longest_anchor(self._anchors, scope, prompt.transcript.digests, stored)
        # The estimate for a view that condensing has changed is no worse than that for a first request.
        mean = mean_error(known.samples.firsts)
        error = None if mean is None else max(_MARGIN * mean, _MIN_ERROR)
        return calibration_for(prompt, known.prices, anchor, window, error)

    def learn(
        self, prompt: CountedPrompt, calibration: Calibration, view: View, applied: str, counted: int
    ) -> Anchor | None:
        """Learns from the upstream's count of the view that was sent, which has the condensation `applied`.

        Returns the anchor for the next request of the branch. A count is ignored if it cannot belong to this prompt, is
        far below that of its beginning, or is the one that the upstream gives for every prompt that it truncates.
        """
        digests, own, scope = prompt.transcript.digests, view.tokens, prompt.scope
        since = calibration.growth_since(applied, own)
        least = _MIN_LEFT * min(since.anchor.counted, calibration.scale.upstream(own)) if since else 0
        whole = prompt.whole if view.is_verbatim else prompt.fixed.plus(of_messages(view.item_messages))
        if not digests or not whole.may_be(counted) or counted < least:
            return None
        features, new = (whole, counted) if since is None else (since.features, counted - since.anchor.counted)
        lesson = Observation(features, new, prompt.conversation, int(self.clock()))
        self._learn(prompt, lesson, abs(calibration.expected(view, applied) - counted) / counted)
        made_by = prompt.counter, prompt.frame, prompt.fixed
        anchor = Anchor(digests[-1].hex(), len(digests), applied, counted, own, *made_by)
        self._anchors.put((scope, digests[-1]), anchor)
        return anchor

    def _learn(self, prompt: CountedPrompt, lesson: Observation, error: float) -> None:
        """Adds an observation, and the relative error of the estimate for it."""
        model, counter = prompt.scope.model, prompt.counter
        known, is_first = self._models(model)[counter], lesson.features.requests > 0
        if not is_first or known.samples.wholes:
            known.samples = known.samples.with_error(error, anchored=not is_first)
        taught = known.samples.with_observation(lesson)
        if taught is not known.samples:
            weight = known.weight(lesson)
            known.samples = taught
            known.lessons += 1
            known.unfitted += weight
            known.unshared += weight
            self._fit_and_share(model, counter, known)
        self.report(model, known.progress)

    def _fit_and_share(self, model: str, counter: str, known: _Known) -> None:
        """Fits and shares what is new: often while little is known, and seldom later."""
        number = len(known.samples.wholes) + len(known.samples.growths)
        due = max(number // _SHARE, 1)
        if known.unfitted >= due and number < _FEW:
            self._fit(model, counter)
        elif known.unfitted >= due:
            self.tasks.start(self._fit_later(model, counter), ("calibration-fit", model, counter))
        if known.unshared >= due:
            self.tasks.start(self._share(model, counter), ("calibration-share", model, counter))

    async def _fit_later(self, model: str, counter: str) -> None:
        """Fits once the current reply has been sent, because with so many observations a fit takes milliseconds."""
        await asyncio.sleep(_LATER)
        self._fit(model, counter)

    def _fit(self, model: str, counter: str) -> None:
        states = self._models(model)
        hints = [hint for by, other in states.items() if by != counter for hint in other.samples.hint(other.prices)]
        known = states[counter]
        known.prices, known.unfitted = known.samples.fit(hints), 0.0

    async def progress(self, model: str, counter: str) -> Progress:
        """How good the estimates for a model are, by what this process and the store know."""
        await self._read(model, counter)
        return self._models(model)[counter].progress

    async def _share(self, model: str, counter: str) -> None:
        await self._read(model, counter)
        known = self._models(model)[counter]
        # Encoded only now: a lesson that arrives during the write is shared after a later reply.
        fact, known.unshared = encoded(known.samples), 0.0
        await self.facts.put(self._name(model, counter), fact, self.ttl, "a calibration")

    async def _read(self, model: str, counter: str) -> None:
        fact = await self.facts.get(self._name(model, counter), "a calibration")
        try:
            theirs = decoded(fact) if fact else None
        except (ValueError, LookupError, TypeError):
            _log.warning("a calibration in the store cannot be read")
            return
        known = self._models(model)[counter]
        merged = known.samples.merged(theirs) if theirs is not None else known.samples
        if merged != known.samples:
            known.samples = merged
            self._fit(model, counter)

    def _name(self, model: str, counter: str) -> str:
        named = json.dumps([self.upstream, model, counter]).encode()
        return f"calibration-{blake2b(named, digest_size=16).hexdigest()}"
