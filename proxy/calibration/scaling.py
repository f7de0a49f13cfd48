"""The scale of one request: from our own count of any of its views to the upstream's. No I/O.

A scale is a straight line through the estimate of the whole request. Its offset is what no condensation touches, so the
estimate holds for a condensed view too. Only media have prices that are too different from those of text: a condensed
view that may have another share of them is estimated by what it is made of.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.calibration.anchor import Anchor, CountedPrompt, Growth, growth
from proxy.calibration.features import of_messages
from proxy.calibration.samples import NOTHING, FittedPrices
from strategies.core.budget import UNSCALED, Scale
from strategies.core.view import View

LEAST, MOST = 0.3, 4.0
"""The bounds of the slope: tokens of the upstream for one of ours."""
_MIN_CHAIN = 64  # tokens; fewer say nothing of a slope
_DIGITS = 6
_ALIKE = 0.02  # of a view's tokens; a form that merges messages costs a few less


class Calibration(NamedTuple):
    """How the upstream is expected to count one request, known before it is sent."""

    scale: Scale = UNSCALED
    """From our count of its views to the upstream's."""
    anchor: Anchor | None = None
    grown: Growth | None = None
    """The part of the request that came after the anchor; None without one."""
    error: float | None = None
    """The share by which an estimate may be wrong; None if that is not known."""
    fit: FittedPrices = NOTHING
    """The prices for requests without an anchor."""
    with_media: CountedPrompt | None = None
    """The request, if it has media whose price is known; None for text."""

    def expected(self, view: View, applied: str) -> int:
        """Tokens that the upstream is expected to count for a view of the request that applies this condensation."""
        prompt = self.with_media
        if prompt is None or view.is_verbatim or self.growth_since(applied, view.tokens) is not None:
            return self.scale.upstream(view.tokens)
        return round(self.fit.tokens(prompt.fixed.plus(of_messages(view.item_messages)), prompt.offering))

    def growth_since(self, applied: str, own: int) -> tuple[Anchor, Growth] | None:
        """The anchor, and what came since, if a view of `own` tokens that applies this condensation has grown from it;
        else None.

        The condensation's id is no proof: other sessions have it too, and the view may lack messages that the client
        trims, or a memory block that has left. So the sizes are compared.
        """
        if self.anchor is None or self.grown is None or self.anchor.applied != applied:
            return None
        return (self.anchor, self.grown) if abs(self.grown.own - own) <= _ALIKE * own else None


UNCALIBRATED = Calibration()


def calibration_for(
    prompt: CountedPrompt, fit: FittedPrices, anchor: Anchor | None, window: int | None, error: float | None = None
) -> Calibration:
    """The scale of a request whose transcript contains the `anchor`; `window` is in tokens of the upstream."""
    grown = growth(anchor, prompt) if anchor is not None else None
    with_media = prompt if prompt.whole.media and not fit.is_even else None
    if anchor is not None and grown is not None:
        total = anchor.counted + fit.tokens(grown.features)
        return Calibration(_through(prompt, fit, grown.own, total), anchor, grown, error, fit, with_media)
    if fit.is_even:
        return Calibration(error=error)
    total = fit.tokens(prompt.whole, prompt.offering)
    if prompt.upper_bound is not None:
        total = min(total, prompt.upper_bound + fit.hidden)
    scale = _through(prompt, fit, prompt.own, total)
    # A guess may take away only a part of the window; the upstream's own figure may take more.
    most = scale.offset if window is None else window // 4
    scale = scale if scale.offset <= most else Scale(most, scale.slope)
    return Calibration(scale, error=error, fit=fit, with_media=with_media)


def _through(prompt: CountedPrompt, fit: FittedPrices, own: int, total: float) -> Scale:
    """The line through `total` at `own` tokens and through the fixed part, if there is enough besides that."""
    fixed = prompt.fixed
    base, chain = fit.tokens(fixed, prompt.offering), own - fixed.own
    slope = (total - base) / chain if chain >= _MIN_CHAIN else fit.prices.words
    slope = round(min(max(slope, LEAST), MOST), _DIGITS)
    return Scale(round(total - slope * own), slope)
