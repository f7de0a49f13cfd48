"""What a condensation costs and saves, where prices are known. Pure.

A prompt that begins as the one before is read from the upstream's cache, at a lower price. Condensing changes its
beginning: once, all that stands is read anew; from then on less is read. Where the cache is cold anyway, nothing is
broken. So a condensation that is not needed yet waits until what it saves in a few turns is more than what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a million tokens, in any one currency: of a prompt, of what of it came from a cache, of a reply."""

    input: float
    cached_input: float
    output: float


class Moment(NamedTuple):
    """Tokens of the upstream: of the view as it stands, of the one that is expected, and of what stands before history
    in both, such as tools and system messages. `calls` is what our own calls for it cost; `is_cold` tells that the
    upstream has nothing of the view in its cache any more."""

    before: int
    after: int
    fixed: int
    calls: float
    is_cold: bool


def turns_to_pay_back(prices: Prices, moment: Moment) -> float:
    """Turns after which a condensation has saved what it cost: 0 where this one pays at once, infinity for never."""
    before, after, fixed, calls, is_cold = moment
    gone = max(before - after, 0)
    if is_cold:
        now = calls - gone * prices.input / _MILLION
    else:
        broken = max(after - fixed, 0) * (prices.input - prices.cached_input)
        now = calls + (broken - gone * prices.cached_input) / _MILLION
    if now <= 0:
        return 0.0
    saved = gone * prices.cached_input / _MILLION
    return now / saved if saved > 0 else inf


def price_of(prices: Prices, *, prompt: int, cached: int, completion: int) -> float:
    """What a call costs, of whose `prompt` tokens `cached` came from a cache."""
    fresh = max(prompt - cached, 0)
    return (fresh * prices.input + cached * prices.cached_input + completion * prices.output) / _MILLION
