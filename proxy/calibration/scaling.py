"""The scale of one request: from our own count of any of its views to the upstream's. Pure.

A scale is a straight line through what is estimated of the whole request. What no condensation touches is its offset,
so the estimate holds for a view that was condensed too.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.calibration.anchor import Anchor, CountedPrompt, Growth, growth
from proxy.calibration.ledger import FittedPrices
from strategies.core.budget import UNSCALED, Scale

LEAST, MOST = 0.3, 4.0
"""Tokens of the upstream for one of our own."""
_LEAST_CHAIN = 64  # tokens; fewer say nothing of a slope
_DIGITS = 6
_ALIKE = 0.02  # of a view's tokens; servers whose form merges messages count a few less


class Calibrated(NamedTuple):
    """What is known of one request before it is sent: the `scale` of its views.

    With an `anchor`, `grown` is what came since. `error` is the share by which a count may be wrong, None where that is
    not known.
    """

    scale: Scale = UNSCALED
    anchor: Anchor | None = None
    grown: Growth | None = None
    error: float | None = None

    @property
    def is_learned(self) -> bool:
        """Whether enough is known of how the upstream counts: the beginning of this request, or how good a line is."""
        return self.anchor is not None or self.error is not None

    def grown_from(self, applied: str, own: int) -> tuple[Anchor, Growth] | None:
        """The anchor that a view has grown from which applies this condensation and has `own` tokens, and what came
        since; None where it has not.

        A condensation's id is no proof: other sessions have it too, and what the client trims or a memory block that
        has left is missing in the view. Its size tells.
        """
        if self.anchor is None or self.grown is None or self.anchor.applied != applied:
            return None
        return (self.anchor, self.grown) if abs(self.grown.own - own) <= _ALIKE * own else None

    def begun_with(self, applied: str, own: int) -> int | None:
        """What the upstream has counted for the beginning of such a view; None where that is not known."""
        since = self.grown_from(applied, own)
        return since[0].counted if since is not None and since[1].begins else None


UNCALIBRATED = Calibrated()


def calibrated(
    prompt: CountedPrompt, line: FittedPrices, anchor: Anchor | None, window: int | None, error: float | None = None
) -> Calibrated:
    """The scale of a request, of which the `anchor` stands in the transcript; `window` in tokens of the upstream."""
    grown = growth(anchor, prompt) if anchor is not None else None
    if anchor is not None and grown is not None:
        total = anchor.counted + line.tokens(grown.features)
        return Calibrated(_through(prompt, line, grown.own, total), anchor, grown, error)
    if line.is_even:
        return Calibrated(error=error)
    total = line.tokens(prompt.whole, prompt.offering)
    if prompt.most is not None:
        total = min(total, prompt.most + line.hidden)
    scale = _through(prompt, line, prompt.own, total)
    # A guess may not take away more than a part of a window; the upstream's own figure may.
    most = scale.offset if window is None else window // 4
    return Calibrated(scale if scale.offset <= most else Scale(most, scale.slope), error=error)


def _through(prompt: CountedPrompt, line: FittedPrices, own: int, total: float) -> Scale:
    """The line through `total` at `own` tokens, and through what is fixed where enough else is there."""
    fixed = prompt.fixed
    base, chain = line.tokens(fixed, prompt.offering), own - fixed.own
    slope = (total - base) / chain if chain >= _LEAST_CHAIN else line.prices.words
    slope = round(min(max(slope, LEAST), MOST), _DIGITS)
    return Scale(round(total - slope * own), slope)
