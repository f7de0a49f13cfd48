"""Calibration of one app: what is known before a request is sent, and what its reply teaches.

What was learned of a model is kept in memory and, as a fact that belongs to no session, in the store: so replicas share
it and a restart keeps it. It is counts alone. Nothing here waits for the store; where that fails, this process knows
what it has learned itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.calibration.anchor import Anchor, Anchors, CountedPrompt, Growth, stands
from proxy.calibration.features import of_messages
from proxy.calibration.fit import Observation
from proxy.calibration.ledger import NOTHING, FittedPrices, Samples, could_be, decoded, encoded
from proxy.calibration.scaling import Calibrated, calibrated
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError
from strategies.core.view import View

FRESH = 60.0  # seconds after which the store is asked again what others have learned
MOST_MODELS = 256
_SHARE = 8  # a fit and a write to the store for every eighth part of what is known that is new
_FEW = 16  # observations up to which each new one counts whole, and a fit is quick
_EXPECTED = 1 / 32  # what a reply counts that the fit has foretold, once as many have come
_LATER = 0.05  # seconds
_LEAST_ERROR = 0.02
_MARGIN = 3.0  # mean errors
_LEAST_LEFT = 0.7  # of what was counted for the beginning of a prompt; templates leave old reasoning out, but not more

_log = logging.getLogger(__name__)


class Forwarded(NamedTuple):
    """What was sent: the view, and the id of the condensation in it, "" for none."""

    view: View
    applied: str


class Progress(NamedTuple):
    """How good estimates for a model are: mean relative errors of requests without and with an anchor, None where too
    few are known; `line` is what is used without one."""

    first: float | None
    anchored: float | None
    line: FittedPrices


@dataclass(slots=True)
class _Known:
    """What is known of one model by one way of counting; `read_at` is when the store was asked.

    `lessons` have come to this process, of which so many are `unfitted` and `unshared`; an expected one is a part.
    """

    ledger: Samples = Samples()  # noqa: RUF009 - immutable
    line: FittedPrices = NOTHING
    lessons: int = 0
    unfitted: float = 0.0
    unshared: float = 0.0
    read_at: float | None = None

    def news(self, lesson: Observation) -> float:
        """What a lesson counts towards the next fit: one that the line foretells can wait for others."""
        if self.lessons < _FEW:
            return 1.0
        off = abs(lesson.counted - self.line.tokens(lesson.features, lesson.offering))
        return 1.0 if off > lesson.noise else _EXPECTED


class Calibrator:
    """What one upstream has taught; one per app. `ttl` in seconds, `clock` in seconds since the epoch.

    `told` is given a model and its progress when that has changed.
    """

    def __init__(
        self,
        upstream: str,
        stored: StoredSessions,
        tasks: OwnedTasks[Any],
        *,
        ttl: int,
        clock: Callable[[], float],
        told: Callable[[str, Progress], None],
    ) -> None:
        self._upstream = upstream
        self._stored = stored
        self._tasks = tasks
        self._ttl = ttl
        self._clock = clock
        self._told = told
        self._anchors = Anchors()
        self._models: Lru[tuple[str, str], _Known] = Lru(MOST_MODELS)

    # -- before a request ----------------------------------------------------------------------------

    def refresh(self, model: str, *counters: str) -> Sequence[Hashable]:
        """Has what others have learned read now and then; the keys of the work that is a first look."""
        now, first = self._clock(), []
        for counter in counters:
            known = self._known(model, counter)
            if known.read_at is not None and 0 <= now - known.read_at < FRESH:
                continue
            if known.read_at is None:
                first.append(_reading(model, counter))
            known.read_at = now
            self._tasks.start(self._read(model, counter), _reading(model, counter))
        return first

    def hidden(self, model: str, *counters: str) -> int:
        """Tokens that the upstream may add to a request by itself, whatever stands in it, as far as is known."""
        return max(self._known(model, counter).line.hidden for counter in counters)

    def calibrated(self, prompt: CountedPrompt, stored: Anchor | None, window: int | None) -> Calibrated:
        """What is known of a request; `stored` is the anchor of its branch, if it has one."""
        known = self._known(prompt.about.model, prompt.counter)
        # Whatever is condensed, the count is no worse than one of a first request.
        mean = known.ledger.error(anchored=False)
        error = None if mean is None else max(_MARGIN * mean, _LEAST_ERROR)
        return calibrated(prompt, known.line, self._anchor(prompt, stored), window, error)

    def _anchor(self, prompt: CountedPrompt, stored: Anchor | None) -> Anchor | None:
        """The one that stands for most of a request."""
        about, digests = prompt.about, prompt.transcript.digests
        known = stored if stored is not None and stands(stored, digests) else None
        # Of one length the branch's own: another session's view may end with the same message.
        newest = self._anchors.newest(about.tenant, about.model, digests, known.length if known else 0)
        return newest if newest is not None and stands(newest, digests) else known

    # -- after a reply -------------------------------------------------------------------------------

    def learned(
        self, prompt: CountedPrompt, known: Calibrated, sent: Forwarded, counted: int, *, teaches: bool = True
    ) -> Anchor | None:
        """Takes in what the upstream has counted for what was sent; the anchor for the next request of the branch.

        A count that cannot be of this prompt, or is far below that of its beginning, is not used. Where it `teaches`
        not, for not all of it is text, it is an anchor all the same.
        """
        digests, own = prompt.transcript.digests, sent.view.tokens
        since = known.grown_from(sent.applied, own)
        least = _LEAST_LEFT * min(since[0].counted, known.scale.upstream(own)) if since else 0
        if not digests or not could_be(counted, own) or counted < least:
            return None
        if teaches:
            self._teach(prompt, known, sent, since, counted)
        node, length = digests[-1].hex(), len(digests)
        anchor = Anchor(node, length, sent.applied, counted, own, prompt.counter, prompt.frame, prompt.fixed)
        self._anchors.keep(prompt.about.tenant, prompt.about.model, anchor)
        return anchor

    def _teach(
        self,
        prompt: CountedPrompt,
        known: Calibrated,
        sent: Forwarded,
        since: tuple[Anchor, Growth] | None,
        counted: int,
    ) -> None:
        entry, now, about = self._known(prompt.about.model, prompt.counter), int(self._clock()), prompt.about
        if since is not None or entry.ledger.wholes:
            off = abs(known.scale.upstream(sent.view.tokens) - counted) / counted
            entry.ledger = entry.ledger.off(off, anchored=since is not None)
        if since is not None:
            anchor, grown = since
            lesson = Observation(grown.features, counted - anchor.counted, about.by, prompt.offering, now)
        else:
            whole = prompt.whole if sent.view.is_whole else prompt.fixed.plus(of_messages(sent.view.shown))
            lesson = Observation(whole, counted, about.by, prompt.offering, now)
        taught = entry.ledger.taught(lesson)
        if taught is not entry.ledger:
            news = entry.news(lesson)
            entry.ledger = taught
            entry.lessons += 1
            entry.unfitted += news
            entry.unshared += news
            self._follow(about.model, prompt.counter, entry)
        self._told(about.model, _progress(entry))

    def _follow(self, model: str, counter: str, entry: _Known) -> None:
        """Fits and shares what is new, often while little is known and seldom later."""
        known = len(entry.ledger.wholes) + len(entry.ledger.growths)
        due = max(known // _SHARE, 1)
        if entry.unfitted >= due and known < _FEW:
            self._fit(model, counter, entry)
        elif entry.unfitted >= due:
            self._tasks.start(self._fit_later(model, counter, entry), ("calibration-fit", model, counter))
        if entry.unshared >= due:
            self._tasks.start(self._share(model, counter), ("calibration-share", model, counter))

    # -- shared --------------------------------------------------------------------------------------

    async def progress(self, model: str, counter: str) -> Progress:
        """How good estimates for a model are, by what is known here and in the store."""
        await self._read(model, counter)
        return _progress(self._known(model, counter))

    async def _share(self, model: str, counter: str) -> None:
        await self._read(model, counter)
        entry = self._known(model, counter)
        # Not before: what comes while another share is under way is due again with the next reply.
        fact, entry.unshared = encoded(entry.ledger), 0.0
        try:
            await self._stored.in_time(self._stored.store.remember(self._name(model, counter), fact, self._ttl))
        except StoreError as error:
            _log.warning("a calibration was not stored: %s", error)

    async def _read(self, model: str, counter: str) -> None:
        """Takes over what other processes have learned."""
        try:
            fact = await self._stored.in_time(self._stored.store.recall(self._name(model, counter)))
            theirs = decoded(fact) if fact else None
        except StoreError as error:
            _log.warning("a calibration was not read: %s", error)
            return
        except (ValueError, LookupError, TypeError):
            _log.warning("a calibration in the store cannot be read")
            return
        known = self._known(model, counter)
        merged = known.ledger.merged(theirs) if theirs is not None else known.ledger
        if merged != known.ledger:
            known.ledger = merged
            self._fit(model, counter, known)

    async def _fit_later(self, model: str, counter: str, entry: _Known) -> None:
        """Fits when the reply at hand has left: by then a fit takes some milliseconds."""
        await asyncio.sleep(_LATER)
        self._fit(model, counter, entry)

    def _fit(self, model: str, counter: str, entry: _Known) -> None:
        others = [known for (name, by), known in self._models.items() if name == model and by != counter]
        hints = [hint for other in others for hint in other.ledger.hint(other.line)]
        entry.line, entry.unfitted = entry.ledger.line(hints), 0.0

    def _name(self, model: str, counter: str) -> str:
        named = json.dumps([self._upstream, model, counter]).encode()
        return f"calibration-{blake2b(named, digest_size=16).hexdigest()}"

    def _known(self, model: str, counter: str) -> _Known:
        return self._models.use((model, counter), _Known)


def _reading(model: str, counter: str) -> tuple[str, str, str]:
    return "calibration-read", model, counter


def _progress(known: _Known) -> Progress:
    return Progress(known.ledger.error(anchored=False), known.ledger.error(anchored=True), known.line)
