"""Estimates of one request: the anchor that it has grown from, and the scale from our count to the upstream's.

An anchor is the upstream's own count for the beginning of a view. Two things name that view: the condensation in it,
and the chain digest of its last message. So the newest digests of a transcript are enough to find its anchor, and only
what came after it is estimated. Tools and system messages are outside of the chain and may change from turn to turn;
the anchor stays valid then, and the difference is estimated like new messages.

Text of one kind has another slope than text of another: a server may count three times as many tokens for Chinese, and
as many for English. A conversation is mostly of one kind, so its branch has a slope of its own: that of its first
request, and of all it has grown by since. New text is estimated by this slope, and a condensed view too, because
the text that was left out is of the same kind. Short messages are mostly framing and show nothing of a long one: a
slope is used for `REACH` times as much text as has shown it, and beyond that the model's, which short prompts hardly
move. What has shown it was counted: estimates by length have a slope of their own, which is only told.

The figures of a model (`figures`) are kept in memory, and in the store as a fact that belongs to no session, so
replicas share them and a restart keeps them: a few numbers, no text. The newest write counts. Nothing here waits for
the store; if it fails, the process still knows what it has learned itself (`Calibrator`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.servers import LessonScope
from proxy.servers.figures import FAR, OWN, Figures, Lesson, decoded, encoded, pictures_in
from proxy.store.access import Facts
from strategies.core.budget import UNSCALED, Scale
from strategies.core.messages import NO_PICTURES, Message, Pictures
from strategies.core.transcript import Transcript
from strategies.core.view import View

MAX_GROWTH = 64  # chain messages after an anchor; a turn adds fewer
MIN_SLOPE, MAX_SLOPE = 0.3, 4.0  # upstream tokens for each token that we count
REACH = 4  # a slope is used for so many times the text that has shown it
MAX_WEIGHT = 16_000  # tokens; a slope that more of them have shown still follows what is new
_UNSURE = 25  # the weight of a slope that a conversation has not shown itself
_MIN_CHAIN = 64  # tokens; fewer say nothing about a slope
_DIGITS = 6
_ALIKE = 0.02  # of a view's tokens; a form that merges messages costs slightly fewer
_NOWHERE = LessonScope("", "")
_log = logging.getLogger(__name__)


class Slope(NamedTuple):
    """How many tokens the upstream counts for one of ours, in the text of one conversation."""

    value: float = 1.0
    weight: int = 0  # the tokens of text that have shown it; 0 if nothing has, and it is the model's

    def after(self, text: int, counted: int) -> Slope:
        """The slope after so many more tokens of text, for which the upstream counts `counted`.

        Less text than has shown it, and off by more than a factor of two, does not move it but takes from its weight.
        """
        # Some servers count the same for each prompt, or only what they had not cached: no text has such a slope.
        if text <= 0 or not MIN_SLOPE * text <= counted <= MAX_SLOPE * text:
            return self
        if text < self.weight and not 1 / FAR <= counted / (self.value * text) <= FAR:
            return self._replace(weight=self.weight - text)
        known = min(max(self.weight, _UNSURE), MAX_WEIGHT)
        return Slope(_bounded((self.value * known + counted) / (known + text)), self.weight + text)

    def over(self, text: int, figures: Figures) -> float:
        """The slope for so many tokens of text; those beyond its reach have that of the figures."""
        return figures.slope + min(REACH * self.weight / max(abs(text), 1), 1.0) * (self.value - figures.slope)

    def tokens(self, text: int, figures: Figures) -> float:
        """How many tokens the upstream counts for `text` of ours."""
        reach = REACH * self.weight
        return figures.slope * text + (self.value - figures.slope) * max(min(text, reach), -reach)


@dataclass(frozen=True)
class CountedPrompt:
    transcript: Transcript
    overhead: int  # tokens of tools and framing, by our own count
    counter: str
    frame: str  # a digest of all that is outside of the chain
    figures_for: str = ""
    """The name of the counter whose figures apply; another one than `counter` if that is an estimate by length."""
    is_exact: bool = True  # whether its count is exact, so that it may teach
    has_media: bool = False
    hidden: tuple[tuple[int, Message], ...] = ()
    """Messages of hidden rounds, each with the number of chain messages before it."""
    scope: LessonScope = _NOWHERE

    @cached_property
    def outside(self) -> int:
        """Tokens of what no condensation touches: tools, framing and system messages."""
        return self.overhead + self.transcript.system_tokens

    @property
    def own(self) -> int:
        return self.transcript.tokens + self.overhead

    @cached_property
    def place(self) -> int:
        """A short name of the upstream and the model, whose counts say nothing of another's."""
        return crc32(f"{self.scope.upstream} {self.scope.model}".encode("utf-8", "surrogatepass"))

    @cached_property
    def pictures(self) -> Pictures:
        return self.pictures_of(self.transcript.chain)

    def pictures_of(self, messages: Sequence[Message]) -> Pictures:
        return pictures_in(messages) if self.has_media else NO_PICTURES

    def since(self, length: int) -> list[Message]:
        return [*[message for at, message in self.hidden if at >= length], *self.transcript.chain[length:]]


NO_PROMPT = CountedPrompt(Transcript(()), 0, "", "")  # a prompt of which nothing was counted


class Anchor(NamedTuple):
    """The upstream's count for one forwarded view."""

    node: str  # the chain digest of the view's last message, in hex
    length: int  # the number of chain messages before the end of the view
    applied: str  # the id of the condensation in the view; "" for none
    counted: int  # the upstream's count of the view, in tokens
    own: int  # our count of the view, in tokens
    counter: str  # the name of the tokenizer that counted for us
    frame: str
    outside: int
    pictures: Pictures
    slope: Slope
    place: int = 0  # `CountedPrompt.place`: who has counted; 0 if that is not known


def from_row(value: Sequence[Any]) -> Anchor:
    """The anchor that was written as a JSON array; raises `ValueError` or `TypeError`."""
    *known, pictures, slope, place = value if isinstance(value[-1], int) else (*value, 0)
    return Anchor._make([*known, Pictures(*pictures), Slope(*slope), place])


def stands_in(anchor: Anchor, digests: Sequence[bytes]) -> bool:
    """Whether a transcript with these chain digests begins with the messages that the anchor was made of."""
    return 0 < anchor.length <= len(digests) and digests[anchor.length - 1].hex() == anchor.node


def longest_anchor(
    anchors: Lru[tuple[LessonScope, bytes], Anchor],
    scope: LessonScope,
    digests: Sequence[bytes],
    stored: Anchor | None = None,
) -> Anchor | None:
    """The anchor of the longest beginning of a transcript with these chain digests.

    `anchors` are by the chain digest of their node. Of two for the same beginning, the one `stored` with the branch
    wins, because another session's view may end with the same message.
    """
    known = stored if stored is not None and stands_in(stored, digests) else None
    newer = digests[max(len(digests) - MAX_GROWTH, known.length if known else 0) :]
    found = next((anchors[scope, digest] for digest in reversed(newer) if (scope, digest) in anchors), None)
    return found if found is not None and stands_in(found, digests) else known


class Growth(NamedTuple):
    """The part of a request that came after its anchor."""

    anchor: Anchor
    text: int  # tokens of all but pictures, by our own count
    pictures: Pictures
    own: int  # our count of the whole grown view, in tokens


def growth(anchor: Anchor, prompt: CountedPrompt) -> Growth | None:
    """The part of a request that came after an anchor in its transcript; None if they cannot be compared.

    They cannot be compared if the anchor has another counter's count, and either something outside of the chain has
    changed or a condensation replaces history.
    """
    new = prompt.since(anchor.length)
    tokens, pictures = sum([message.tokens for message in new]), prompt.pictures_of(new)
    if anchor.counter == prompt.counter:
        tokens += prompt.outside - anchor.outside
        return Growth(anchor, tokens - pictures.tokens, pictures, anchor.own + tokens)
    if anchor.applied or anchor.frame != prompt.frame:
        return None
    return Growth(anchor, tokens - pictures.tokens, pictures, prompt.own)


def slope_between(first: Anchor, last: Anchor, prompt: CountedPrompt, figures: Figures) -> Slope:
    """The slope of what a transcript has grown by from one anchor to another, by the counter of the request."""
    slope, new = Slope(figures.slope), prompt.transcript.chain[first.length : last.length]
    if prompt.hidden or pictures_in(new).number or (first.applied, first.frame) != (last.applied, last.frame):
        return slope
    return slope.after(sum([message.tokens for message in new]), last.counted - first.counted)


def whole_lesson(prompt: CountedPrompt, view: View, counted: int) -> Lesson:
    pictures = pictures_in(view.item_messages) if prompt.has_media else NO_PICTURES
    return Lesson(view.tokens - pictures.tokens, pictures, counted, is_whole=True)


class Calibration(NamedTuple):
    """How the upstream is expected to count one request, known before it is sent."""

    scale: Scale = UNSCALED  # from our count of its views to the upstream's
    grown: Growth | None = None  # the anchor, and the part of the request that came after it; None without one
    error: float | None = None  # the share by which an estimate may be wrong; None if that is not known
    slope: Slope = Slope()
    figures: Figures = OWN
    pictures: Pictures = NO_PICTURES  # those in the view that the scale is exact for, if the request has media
    at: int = 0  # the tokens of that view, by our own count

    def expected(self, view: View, applied: str) -> int:
        """Tokens that the upstream is expected to count for a view of the request that applies this condensation."""
        if not self.pictures.number or self.growth_since(applied, view.tokens) is not None:
            return self.scale.upstream(view.tokens)
        # A line does not hold for another mixture of text and pictures.
        pictures = pictures_in(view.item_messages)
        text = view.tokens - pictures.tokens - (self.at - self.pictures.tokens)
        more = self.slope.tokens(text, self.figures) + self.figures.cost(pictures) - self.figures.cost(self.pictures)
        return max(round(self.scale.upstream(self.at) + more), 0)

    def growth_since(self, applied: str, own: int) -> Growth | None:
        """What came since the anchor, if a view of `own` tokens with this condensation has grown from it; else None.

        The condensation's id is no proof: other sessions may have it too, and the view may lack messages that the
        client trimmed, or a memory block that is gone. So the sizes are compared.
        """
        if self.grown is None or self.grown.anchor.applied != applied:
            return None
        return self.grown if abs(self.grown.own - own) <= _ALIKE * own else None

    def lesson(self, whole: Lesson, since: Growth | None) -> Lesson:
        """What the upstream's count of a view shows: what it has more than its anchor, or all of it without one."""
        counted = whole.counted
        if since is not None:
            return Lesson(since.text, since.pictures, counted - since.anchor.counted, is_whole=False)
        if self.grown is not None and whole.pictures.number != self.grown.anchor.pictures.number:
            # A condensed view shows the price of the pictures that it lacks.
            was = self.grown.anchor
            text = whole.text - (was.own - was.pictures.tokens)
            return Lesson(text, whole.pictures.minus(was.pictures), counted - was.counted, is_whole=False)
        return whole

    def slope_after(self, prompt: CountedPrompt, view: View, lesson: Lesson, counted: int) -> Slope:
        """The slope of the branch after a lesson; that of text next to pictures is not known."""
        if not prompt.is_exact and prompt.counter == prompt.figures_for:
            return self.slope
        if not lesson.is_whole and not lesson.pictures.number:
            return self.slope.after(lesson.text, lesson.counted)
        if self.slope.weight or lesson.pictures.number:
            return self.slope
        shown, certainty = self.figures.slope_shown(view.tokens, counted)
        return Slope(_bounded(shown), round(certainty**2 * max(view.tokens - prompt.outside, 0)))


UNCALIBRATED = Calibration()


def calibration_for(
    prompt: CountedPrompt, figures: Figures, anchor: Anchor | None, stored: Anchor | None, window: int | None
) -> Calibration:
    """The calibration of a request whose transcript has the `anchor`; `window` is in tokens of the upstream.

    Without an anchor, the slope is that of the one `stored` with the branch, whose history has changed since.
    """
    grown = growth(anchor, prompt) if anchor is not None else None
    if grown is not None:
        slope = grown.anchor.slope if grown.anchor.slope.weight else Slope(figures.slope)
        pictures, total = grown.anchor.pictures, grown.anchor.counted + slope.tokens(grown.text, figures)
        if grown.pictures.number:
            pictures, total = pictures.plus(grown.pictures), total + figures.cost(grown.pictures)
        scale = _through(prompt, figures, slope, grown.own, total)
        return Calibration(scale, grown, None, slope, figures, pictures, grown.own)
    is_known = stored is not None and stored.counter == prompt.counter and stored.slope.weight
    slope = stored.slope if stored is not None and is_known else Slope(figures.slope)
    if not figures.is_taught and not slope.weight:
        return UNCALIBRATED
    # A guess may take only a part of the window; the upstream's own figure may take more.
    offset = figures.offset if window is None else min(figures.offset, window // 4)
    pictures = prompt.pictures
    total = offset + slope.tokens(prompt.own - pictures.tokens, figures) + figures.cost(pictures)
    scale = _through(prompt, figures, slope, prompt.own, total)
    return Calibration(scale, None, None, slope, figures, pictures, prompt.own)


def _through(prompt: CountedPrompt, figures: Figures, slope: Slope, own: int, total: float) -> Scale:
    """The line through `total` at `own` tokens: with the slope of the text, or with media, of all in the chain."""
    chain = own - prompt.outside
    value = slope.over(chain, figures)
    if prompt.has_media and chain >= _MIN_CHAIN:
        value = _bounded((total - figures.offset - value * prompt.outside) / chain)
    return Scale(round(total - value * own), value)


def _bounded(slope: float) -> float:
    return round(min(max(slope, MIN_SLOPE), MAX_SLOPE), _DIGITS)


# -- the calibration of one app --------------------------------------------------------------------------------

FRESH = 60.0  # seconds until the store is read again for what other processes have learned
MAX_MODELS = 256
MAX_ANCHORS = 4_096  # in memory
_SHARE = 8  # a model's figures are written to the store after an eighth more prompts, and after this many at the latest
_MARGIN, _MIN_ERROR = 3.0, 0.02  # the assumed error of a count: this many mean errors, but at least this share
_MIN_LEFT = 0.7
"""The upstream counts at least this share of a prompt's beginning again: templates drop old reasoning, but no more."""
_MIN_SHARE = 0.2
"""An upstream counts at least this share of our own count of a prompt's text."""
_SURE = 200  # so many tokens show the slope of a conversation well enough to see what else is in its prompts


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
        if anchor is not None and anchor.length < prompt.transcript.leading:
            anchor = None  # the server has counted what its compaction now stands for
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
        if not digests or counted < least:
            return None
        lesson = calibration.lesson(whole, since)
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
