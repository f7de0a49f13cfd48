"""The calibration of one app: what is known before a request is sent, and what its reply teaches.

The figures of a model are kept in memory, and in the store as a fact that belongs to no session, so replicas
share it and a restart keeps it: a few numbers, no text. The newest write counts. Nothing here waits for the store; if
the store fails, the process still knows what it has learned itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from hashlib import blake2b

from proxy.knowledge.anchor import (
    MAX_GROWTH,
    Anchor,
    Calibration,
    CountedPrompt,
    Slope,
    calibration_for,
    longest_anchor,
    slope_between,
    whole_lesson,
)
from proxy.knowledge.figures import OWN, Figures, Lesson, decoded, encoded
from proxy.knowledge.profiles import LessonScope
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.store.access import Facts
from strategies.core.view import View

FRESH = 60.0  # seconds until the store is read again for what other processes have learned
MAX_MODELS = 256
MAX_ANCHORS = 4_096  # in memory
_SHARE = 8  # a model's figures are written to the store after an eighth more prompts, and after this many at the latest
_MARGIN, _MIN_ERROR = 3.0, 0.02  # the assumed error of a count: this many mean errors, but at least this share
_MIN_LEFT = 0.7
"""The upstream counts at least this share of a prompt's beginning again: templates drop old reasoning, but no more."""
_MIN_SHARE, _MAX_TIMES, _MAX_HIDDEN = 0.2, 6, 100_000
"""What an upstream may count for a prompt, by our own count of its text, and of all of it."""

_SURE = 200  # so many tokens show the slope of a conversation well enough to see what else is in its prompts

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """What this process knows about how one model counts, compared with one counter."""

    figures: Figures = OWN
    unshared: int = 0  # lessons that are not in the store yet
    is_shared: bool = False
    """Whether the figures have ever been those of the store; until then it knows more than this process."""
    read_at: float | None = None  # when the store was last read, in seconds since the epoch


@dataclass(slots=True, eq=False)
class Calibrator:
    """The calibration for each upstream; one per app.

    `ttl` is in seconds, `clock` gives seconds since the epoch. `report` is called with a model and its figures when
    these change.
    """

    facts: Facts
    tasks: OwnedTasks
    _: KW_ONLY
    ttl: int
    clock: Callable[[], float]
    report: Callable[[str, Figures], None]
    _anchors: Lru[tuple[LessonScope, bytes], Anchor] = field(default_factory=lambda: Lru(MAX_ANCHORS))
    """The latest anchors of all conversations, by the chain digest of their node."""
    _of: Callable[[str, str, str], _Known] = field(
        default_factory=lambda: lru_cache(MAX_MODELS)(lambda _upstream, _model, _counter: _Known())
    )

    def _known(self, scope: LessonScope, counter: str) -> _Known:
        """For all tenants: a number of tokens tells nothing of a request."""
        return self._of(scope.upstream, scope.model, counter)

    def refresh(self, scope: LessonScope, counter: str) -> Sequence[Hashable]:
        """Starts reading what others have learned, if that is due; returns the key of the task that reads it first."""
        now, known = self.clock(), self._known(scope, counter)
        key = "calibration-read", scope.upstream, scope.model, counter
        if known.read_at is not None and 0 <= now - known.read_at < FRESH:
            return ()
        first = () if known.read_at is not None else (key,)
        known.read_at = now
        self.tasks.start(self._read(scope, counter), key)
        return first

    def hidden(self, scope: LessonScope, counter: str) -> int:
        """The tokens that the upstream adds to a request by itself, as far as is known."""
        return round(self._known(scope, counter).figures.offset)

    def calibrate(self, prompt: CountedPrompt, stored: Anchor | None, window: int | None) -> Calibration:
        """The calibration of a request before it is sent; `stored` is the anchor of its branch, if it has one."""
        scope = prompt.scope
        if stored is not None and stored.place != prompt.place:
            stored = None
        anchor = longest_anchor(self._anchors, scope, prompt.transcript.digests, stored)
        figures = self._known(scope, prompt.figures_for).figures
        # The estimate for a view that condensing has changed is no worse than that for a first request.
        known = figures.first_error if prompt.is_exact else None
        error = max(_MARGIN * known, _MIN_ERROR) if known is not None else None
        if prompt.counter != prompt.figures_for:
            figures = figures._replace(slope=1.0)  # theirs is that of another counter than this estimate by length
        if anchor is not None and anchor.counter != prompt.counter:
            keys = [(scope, digest) for digest in prompt.transcript.digests[-MAX_GROWTH:]]
            first = next((self._anchors[key] for key in keys if key in self._anchors), anchor)
            anchor = anchor._replace(slope=slope_between(first, anchor, prompt, figures))
        return calibration_for(prompt, figures, anchor, stored, window)._replace(error=error)

    def learn(
        self, prompt: CountedPrompt, calibration: Calibration, view: View, applied: str, counted: int
    ) -> Anchor | None:
        """Learns from the upstream's count of the view that was sent, which has the condensation `applied`.

        Returns the anchor for the next request of the branch. A count is ignored if it cannot belong to this prompt, or
        is far below that of its beginning.
        """
        digests, own = prompt.transcript.digests, view.tokens
        whole = whole_lesson(prompt, view, counted)
        least, since = _MIN_SHARE * whole.text, calibration.growth_since(applied, own)
        if since is not None:
            least = max(least, _MIN_LEFT * min(since.anchor.counted, calibration.scale.upstream(own)))
        if not digests or not least <= counted <= _MAX_TIMES * own + _MAX_HIDDEN:
            return None
        lesson = calibration.lesson(prompt, view, applied, counted)
        slope = calibration.slope_after(prompt, view, lesson, counted)
        if prompt.is_exact:
            error = abs(calibration.expected(view, applied) - counted) / counted
            self._teach(prompt, whole, lesson, slope, error)
        made_by = prompt.counter, prompt.frame, prompt.outside, whole.pictures, slope, prompt.place
        anchor = Anchor(digests[-1].hex(), len(digests), applied, counted, own, *made_by)
        self._anchors.put((prompt.scope, digests[-1]), anchor)
        return anchor

    def _teach(self, prompt: CountedPrompt, whole: Lesson, lesson: Lesson, slope: Slope, error: float) -> None:
        """Teaches the figures of a model; `error` is the relative one of what was expected."""
        scope, counter = prompt.scope, prompt.figures_for
        known, is_sure = self._known(scope, counter), slope.weight >= _SURE
        lesson = lesson._replace(slope=slope.value, is_sure=is_sure)
        figures = known.figures.with_error(error, is_first=lesson.is_whole).taught_by(lesson)
        if not prompt.has_media:
            if slope.weight >= max(2 * _SURE, 2 * prompt.outside):
                figures = figures.with_offset(whole.counted - slope.tokens(whole.text, figures), known.figures)
        elif whole.pictures.number and not figures.price.is_firm and not lesson.pictures.number:
            # When a conversation has shown its slope, what is left shows the price of the pictures before.
            figures = figures.taught_by(whole._replace(slope=slope.value, is_sure=is_sure))
        known.figures, known.unshared = figures, known.unshared + 1
        self.report(scope.model, figures)
        if known.unshared >= min(1 + figures.line.taught // _SHARE, _SHARE):
            key = "calibration-share", scope.upstream, scope.model, counter
            self.tasks.start(self._share(scope, counter), key)

    async def figures(self, scope: LessonScope, counter: str) -> Figures:
        """How a model counts, by what this process and the store know."""
        await self._read(scope, counter)
        return self._known(scope, counter).figures

    async def _share(self, scope: LessonScope, counter: str) -> None:
        known = self._known(scope, counter)
        if not known.is_shared:
            await self._read(scope, counter)
        # Encoded only now: a lesson that arrives during the write is shared after a later reply.
        fact, known.unshared = encoded(known.figures), 0
        known.is_shared |= await self.facts.put(self._name(scope, counter), fact, self.ttl, "a calibration")

    async def _read(self, scope: LessonScope, counter: str) -> None:
        """Takes over what others have written last, unless this process knows that and is about to write."""
        fact = await self.facts.get(self._name(scope, counter), "a calibration")
        try:
            theirs = decoded(fact) if fact else None
        except (ValueError, TypeError):
            _log.warning("a calibration in the store cannot be read")
            return
        known = self._known(scope, counter)
        if theirs is not None and not (known.unshared and known.is_shared):
            known.figures, known.is_shared = theirs, True

    def _name(self, scope: LessonScope, counter: str) -> str:
        named = json.dumps([scope.upstream, scope.model, counter]).encode()
        return f"calibration-{blake2b(named, digest_size=16).hexdigest()}"
