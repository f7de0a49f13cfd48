"""Estimates of one request: the anchor that it has grown from, and the scale from our count to the upstream's. No I/O.

An anchor is the upstream's own count for the beginning of a view. Two things name that view: the condensation in it,
and the chain digest of its last message. So the newest digests of a transcript are enough to find its anchor, and only
what came after it is estimated. Tools and system messages are outside of the chain and may change from turn to turn;
the anchor stays valid then, and the difference is estimated like new messages.

A scale is a straight line through the estimate of the whole request. Its offset is what no condensation touches, so the
estimate holds for a condensed view too. Media are the exception, because their prices differ too much from those of
text: if a request has any, a condensed view is estimated by what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from proxy.knowledge.prices import EVEN, Features, of_messages
from proxy.knowledge.profiles import LessonScope
from proxy.runtime.lru import Lru
from strategies.core.budget import UNSCALED, Scale
from strategies.core.messages import Message
from strategies.core.transcript import Transcript
from strategies.core.view import View

MAX_GROWTH = 64  # chain messages after an anchor; a turn adds fewer
MIN_SLOPE, MAX_SLOPE = 0.3, 4.0  # upstream tokens for each token that we count
_MIN_CHAIN = 64  # tokens; fewer say nothing about a slope
_DIGITS = 6
_ALIKE = 0.02  # of a view's tokens; a form that merges messages costs slightly fewer
_NOWHERE = LessonScope("", "")


@dataclass(frozen=True)
class CountedPrompt:
    transcript: Transcript
    overhead: int
    """Tokens of tools and framing, by our own count."""
    counter: str
    frame: str
    """A digest of all that is outside of the chain."""
    has_tools: bool = False
    upper_bound: int | None = None
    """Tokens that no tokenizer exceeds for this request, if that is known."""
    hidden: tuple[tuple[int, Message], ...] = ()
    """Messages of hidden rounds, each with the number of chain messages before it."""
    chain_features: Features | None = None
    scope: LessonScope = _NOWHERE
    conversation: str = ""

    @property
    def chain(self) -> Features:
        return of_messages(self.transcript.chain) if self.chain_features is None else self.chain_features

    @cached_property
    def fixed(self) -> Features:
        """The features of what no condensation touches: tools, framing and system messages."""
        systems = of_messages([message for _, message in self.transcript.systems])
        made_of = systems.messages, systems.words, systems.code, systems.non_latin
        return Features(1.0, float(self.has_tools), *made_of, float(self.overhead))

    @cached_property
    def whole(self) -> Features:
        return self.fixed.plus(self.chain)

    @property
    def own(self) -> int:
        return self.transcript.tokens + self.overhead

    def since(self, length: int) -> list[Message]:
        return [*[message for at, message in self.hidden if at >= length], *self.transcript.chain[length:]]


NO_PROMPT = CountedPrompt(Transcript(()), 0, "", "")
"""A prompt of which nothing was counted."""


class Anchor(NamedTuple):
    """The upstream's count for one forwarded view."""

    node: str
    """The chain digest of the view's last message, in hex."""
    length: int
    """The number of chain messages before the end of the view."""
    applied: str
    """The id of the condensation in the view; "" for none."""
    counted: int
    """The upstream's count of the view, in tokens."""
    own: int
    """Our count of the view, in tokens."""
    counter: str
    """The name of the tokenizer that counted for us."""
    frame: str
    fixed: Features


def from_row(value: Sequence[Any]) -> Anchor:
    """The anchor that was written as a JSON array; raises `ValueError`, `LookupError` or `TypeError`."""
    return Anchor._make([*value[:-1], Features(*map(float, value[-1]))])


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
    features: Features
    own: int
    """Our count of the whole grown view, in tokens."""


def growth(anchor: Anchor, prompt: CountedPrompt) -> Growth | None:
    """The part of a request that came after an anchor in its transcript; None if they cannot be compared.

    They cannot be compared if the anchor has another counter's count, and either something outside of the chain has
    changed or a condensation replaces history.
    """
    new = prompt.since(anchor.length)
    features = of_messages(new)
    if anchor.counter == prompt.counter:
        tokens = sum([message.tokens for message in new])
        if anchor.fixed == prompt.fixed:
            return Growth(anchor, features, anchor.own + tokens)
        outside = prompt.fixed.minus(anchor.fixed)
        return Growth(anchor, features.plus(outside), anchor.own + tokens + round(outside.own))
    if anchor.applied or anchor.frame != prompt.frame:
        return None
    return Growth(anchor, features, prompt.own)


class Calibration(NamedTuple):
    """How the upstream is expected to count one request, known before it is sent."""

    scale: Scale = UNSCALED
    """From our count of its views to the upstream's."""
    grown: Growth | None = None
    """The anchor, and the part of the request that came after it; None without one."""
    error: float | None = None
    """The share by which an estimate may be wrong; None if that is not known."""
    prices: Features = EVEN
    """The prices for requests without an anchor."""
    with_media: CountedPrompt | None = None
    """The request, if it has media whose price is known; None for text."""

    def expected(self, view: View, applied: str) -> int:
        """Tokens that the upstream is expected to count for a view of the request that applies this condensation."""
        prompt = self.with_media
        if prompt is None or view.is_verbatim or self.growth_since(applied, view.tokens) is not None:
            return self.scale.upstream(view.tokens)
        return round(prompt.fixed.plus(of_messages(view.item_messages)).at(self.prices))

    def growth_since(self, applied: str, own: int) -> Growth | None:
        """What came since the anchor, if a view of `own` tokens with this condensation has grown from it; else None.

        The condensation's id is no proof: other sessions may have it too, and the view may lack messages that the
        client trimmed, or a memory block that is gone. So the sizes are compared.
        """
        if self.grown is None or self.grown.anchor.applied != applied:
            return None
        return self.grown if abs(self.grown.own - own) <= _ALIKE * own else None


UNCALIBRATED = Calibration()


def calibration_for(
    prompt: CountedPrompt, prices: Features, anchor: Anchor | None, window: int | None, error: float | None = None
) -> Calibration:
    """The calibration of a request whose transcript has the `anchor`; `window` is in tokens of the upstream."""
    grown = growth(anchor, prompt) if anchor is not None else None
    with_media = prompt if prices != EVEN and prompt.whole.media else None
    if grown is not None:
        total = grown.anchor.counted + grown.features.at(prices)
        return Calibration(_through(prompt, prices, grown.own, total), grown, error, prices, with_media)
    if prices == EVEN:
        return Calibration(error=error)
    total = prompt.whole.at(prices)
    if prompt.upper_bound is not None:
        total = min(total, prompt.upper_bound + prices.hidden)
    scale = _through(prompt, prices, prompt.own, total)
    # A guess may take only a part of the window; the upstream's own figure may take more.
    most = scale.offset if window is None else window // 4
    scale = scale if scale.offset <= most else Scale(most, scale.slope)
    return Calibration(scale, error=error, prices=prices, with_media=with_media)


def _through(prompt: CountedPrompt, prices: Features, own: int, total: float) -> Scale:
    """The line through `total` at `own` tokens and through the fixed part, if there is enough besides that."""
    fixed = prompt.fixed
    chain = own - fixed.own
    slope = (total - fixed.at(prices)) / chain if chain >= _MIN_CHAIN else prices.words
    slope = round(min(max(slope, MIN_SLOPE), MAX_SLOPE), _DIGITS)
    return Scale(round(total - slope * own), slope)
