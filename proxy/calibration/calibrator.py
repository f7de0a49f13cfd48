"""The calibration of one app: what is known before a request is sent, and what its reply teaches.

What is learned of a model is kept in memory, and in the store as a fact that belongs to no session, so replicas share
it and a restart keeps it. It consists of counts alone. Nothing here waits for the store; if the store fails, the
process still knows what it has learned itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from proxy.calibration.anchor import About, Anchor, Anchors, CountedPrompt, Growth, stands_in
from proxy.calibration.features import Features, of_messages
from proxy.calibration.fit import Observation
from proxy.calibration.samples import NOTHING, FittedPrices, Samples, could_be, decoded, encoded
from proxy.calibration.scaling import Calibration, calibration_for
from proxy.learning.proof import Scope
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.facts import Facts
from strategies.core.view import View

FRESH = 60.0  # seconds until the store is read again for what other processes have learned
MAX_MODELS = 256
_SHARE = 8
"""A fit and a write to the store are due once this part, an eighth, of what is known is new."""
_FEW = 16
"""Observations up to which each new one counts fully, and a fit is quick."""
_EXPECTED = 1 / 32
"""The weight of an observation that the prices have foretold, once there are more than a few."""
_LATER = 0.05
"""Seconds after a reply at which a slow fit begins."""
_MIN_ERROR, _MARGIN = 0.02, 3.0
"""The error of a count is taken to be this many mean errors, and at least so large a share."""
_MIN_LEFT = 0.7
"""The least share of a prompt's beginning that is counted again: templates drop old reasoning, but not more."""

_log = logging.getLogger(__name__)


class Forwarded(NamedTuple):
    """The view that was sent."""

    view: View
    applied: str
    """The id of the condensation in the view; "" for none."""


class Progress(NamedTuple):
    """How good the estimates for a model are."""

    first: float | None
    """The mean relative error for requests without an anchor; None if too few are known."""
    anchored: float | None
    """The same for requests with an anchor."""
    prices: FittedPrices
    """The prices for requests without an anchor."""


@dataclass(slots=True)
class _ModelState:
    """The knowledge of this process about how one model counts, by one counter."""

    samples: Samples = Samples()  # noqa: RUF009 - immutable
    prices: FittedPrices = NOTHING
    lessons: int = 0
    """Observations that have come to this process."""
    unfitted: float = 0.0
    """How much of them is not in the prices yet; one that was expected counts as a small part."""
    unshared: float = 0.0
    """How much of them is not in the store yet."""
    read_at: float | None = None
    """When the store was last read, in seconds since the epoch."""

    def weight(self, lesson: Observation) -> float:
        """How much an observation counts towards the next fit: one that the prices foretell can wait for others."""
        if self.lessons < _FEW:
            return 1.0
        off = abs(lesson.counted - self.prices.tokens(lesson.features, lesson.offering))
        return 1.0 if off > lesson.noise else _EXPECTED


class Calibrator:
    """The calibration for one upstream; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch. `report` is called with a model and its progress when
    that changes. `truncated_at` gives the count of each prompt for a model that the upstream is proven to truncate.
    """

    def __init__(
        self,
        upstream: str,
        facts: Facts,
        tasks: OwnedTasks,
        *,
        ttl: int,
        clock: Callable[[], float],
        report: Callable[[str, Progress], None],
        truncated_at: Callable[[Scope], int | None] = lambda _: None,
    ) -> None:
        self._upstream = upstream
        self._facts = facts
        self._tasks = tasks
        self._ttl = ttl
        self._clock = clock
        self._report = report
        self._truncated_at = truncated_at
        self._anchors = Anchors()
        self._models: Lru[tuple[str, str], _ModelState] = Lru(MAX_MODELS)

    # -- before a request ----------------------------------------------------------------------------

    def refresh(self, model: str, *counters: str) -> Sequence[Hashable]:
        """Starts reading what other processes have learned, for each counter that it is time for.

        Returns the keys of those tasks that read for the first time.
        """
        now, first = self._clock(), []
        for counter in counters:
            known = self._state(model, counter)
            if known.read_at is not None and 0 <= now - known.read_at < FRESH:
                continue
            if known.read_at is None:
                first.append(_reading(model, counter))
            known.read_at = now
            self._tasks.start(self._read(model, counter), _reading(model, counter))
        return first

    def hidden(self, model: str, *counters: str) -> int:
        """The most tokens that the upstream may add to a request by itself, as far as is known."""
        return max(self._state(model, counter).prices.hidden for counter in counters)

    def calibrate(self, prompt: CountedPrompt, stored: Anchor | None, window: int | None) -> Calibration:
        """The calibration of a request before it is sent; `stored` is the anchor of its branch, if it has one."""
        known = self._state(prompt.about.model, prompt.counter)
        self._forget_truncated(prompt.about, prompt.counter, known)
        # A view that condensing has changed is counted no worse than a first request.
        mean = known.samples.error(anchored=False)
        error = None if mean is None else max(_MARGIN * mean, _MIN_ERROR)
        return calibration_for(prompt, known.prices, self._anchor(prompt, stored), window, error)

    def _anchor(self, prompt: CountedPrompt, stored: Anchor | None) -> Anchor | None:
        """The anchor that stands for most of a request."""
        about, digests = prompt.about, prompt.transcript.digests
        known = stored if stored is not None and stands_in(stored, digests) else None
        # If both are of one length, the branch's own: another session's view may end with the same message.
        newest = self._anchors.newest(about.tenant, about.model, digests, known.length if known else 0)
        found = newest if newest is not None and stands_in(newest, digests) else known
        return None if found is None or found.counted == self._truncated_at(_scope(about)) else found

    def _forget_truncated(self, about: About, counter: str, entry: _ModelState) -> None:
        """Drops what replies have taught whose prompts are known by now to have been truncated."""
        kept = self._truncated_at(_scope(about))
        samples = entry.samples if kept is None else entry.samples.without(kept)
        if samples is not entry.samples:
            entry.samples = samples
            self._fit(about.model, counter, entry)

    # -- after a reply -------------------------------------------------------------------------------

    def learn(self, prompt: CountedPrompt, known: Calibration, sent: Forwarded, counted: int) -> Anchor | None:
        """Learns from the upstream's count of what was sent, and returns the anchor for the next request of the branch.

        A count that cannot be one of this prompt, is far below that of its beginning, or is the one that the upstream
        gives for each prompt that it truncates, is ignored.
        """
        digests, own = prompt.transcript.digests, sent.view.tokens
        since = known.growth_since(sent.applied, own)
        least = _MIN_LEFT * min(since[0].counted, known.scale.upstream(own)) if since else 0
        whole = prompt.whole if sent.view.is_verbatim else prompt.fixed.plus(of_messages(sent.view.item_messages))
        is_truncated = counted == self._truncated_at(_scope(prompt.about))
        if not digests or is_truncated or not could_be(counted, whole) or counted < least:
            return None
        self._teach(prompt, known, sent, since, whole, counted)
        node, length = digests[-1].hex(), len(digests)
        anchor = Anchor(node, length, sent.applied, counted, own, prompt.counter, prompt.frame, prompt.fixed)
        self._anchors.keep(prompt.about.tenant, prompt.about.model, anchor)
        return anchor

    def _teach(
        self,
        prompt: CountedPrompt,
        known: Calibration,
        sent: Forwarded,
        since: tuple[Anchor, Growth] | None,
        whole: Features,
        counted: int,
    ) -> None:
        entry, now, about = self._state(prompt.about.model, prompt.counter), int(self._clock()), prompt.about
        if since is not None or entry.samples.wholes:
            off = abs(known.expected(sent.view, sent.applied) - counted) / counted
            entry.samples = entry.samples.with_error(off, anchored=since is not None)
        if since is not None:
            anchor, grown = since
            lesson = Observation(grown.features, counted - anchor.counted, about.by, prompt.offering, now)
        else:
            lesson = Observation(whole, counted, about.by, prompt.offering, now)
        taught = entry.samples.with_observation(lesson)
        if taught is not entry.samples:
            weight = entry.weight(lesson)
            entry.samples = taught
            entry.lessons += 1
            entry.unfitted += weight
            entry.unshared += weight
            self._fit_and_share(about.model, prompt.counter, entry)
        self._report(about.model, _progress(entry))

    def _fit_and_share(self, model: str, counter: str, entry: _ModelState) -> None:
        """Fits and shares what is new: often while little is known, and seldom later."""
        known = len(entry.samples.wholes) + len(entry.samples.growths)
        due = max(known // _SHARE, 1)
        if entry.unfitted >= due and known < _FEW:
            self._fit(model, counter, entry)
        elif entry.unfitted >= due:
            self._tasks.start(self._fit_later(model, counter, entry), ("calibration-fit", model, counter))
        if entry.unshared >= due:
            self._tasks.start(self._share(model, counter), ("calibration-share", model, counter))

    # -- shared --------------------------------------------------------------------------------------

    async def progress(self, model: str, counter: str) -> Progress:
        """How good the estimates for a model are, by what this process and the store know."""
        await self._read(model, counter)
        return _progress(self._state(model, counter))

    async def _share(self, model: str, counter: str) -> None:
        await self._read(model, counter)
        entry = self._state(model, counter)
        # Encoded only now: a lesson that comes while this is written is due again with the next reply.
        fact, entry.unshared = encoded(entry.samples), 0.0
        await self._facts.put(self._name(model, counter), fact, self._ttl, "a calibration")

    async def _read(self, model: str, counter: str) -> None:
        """Reads and merges what other processes have learned."""
        fact = await self._facts.get(self._name(model, counter), "a calibration")
        try:
            theirs = decoded(fact) if fact else None
        except (ValueError, LookupError, TypeError):
            _log.warning("a calibration in the store cannot be read")
            return
        known = self._state(model, counter)
        merged = known.samples.merged(theirs) if theirs is not None else known.samples
        if merged != known.samples:
            known.samples = merged
            self._fit(model, counter, known)

    async def _fit_later(self, model: str, counter: str, entry: _ModelState) -> None:
        """Fits once the reply at hand has been sent, because a fit takes some milliseconds by then."""
        await asyncio.sleep(_LATER)
        self._fit(model, counter, entry)

    def _fit(self, model: str, counter: str, entry: _ModelState) -> None:
        others = [known for (name, by), known in self._models.items() if name == model and by != counter]
        hints = [hint for other in others for hint in other.samples.hint(other.prices)]
        entry.prices, entry.unfitted = entry.samples.fit(hints), 0.0

    def _name(self, model: str, counter: str) -> str:
        named = json.dumps([self._upstream, model, counter]).encode()
        return f"calibration-{blake2b(named, digest_size=16).hexdigest()}"

    def _state(self, model: str, counter: str) -> _ModelState:
        return self._models.use((model, counter), _ModelState)


def _scope(about: About) -> Scope:
    return Scope(about.model, about.tenant)


def _reading(model: str, counter: str) -> tuple[str, str, str]:
    return "calibration-read", model, counter


def _progress(known: _ModelState) -> Progress:
    return Progress(known.samples.error(anchored=False), known.samples.error(anchored=True), known.prices)
