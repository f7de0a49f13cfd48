"""The cost and the savings of a condensation, where prices are known. No I/O.

The upstream reads a prompt that begins like the one before from its cache, at a lower price. Condensing changes that
beginning: the upstream reads the whole prompt anew once, and fewer tokens from then on. If its cache is cold,
condensing breaks nothing. So a condensation that is not needed yet waits until its savings in a few turns exceed its
cost.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from proxy.condensing.context import RequestContext
from proxy.settings.tables import Prices

_MILLION = 1_000_000


class Moment(NamedTuple):
    """The figures that decide whether to condense now; sizes are in tokens of the upstream."""

    before: int
    """Of the view as it is."""
    after: int
    """Of the view that is expected after condensing."""
    fixed: int
    """Of what precedes the history in both, such as tools and system messages."""
    calls: float
    """The price of our own calls for the condensation."""
    is_cold: bool
    """Whether the upstream has nothing of the view in its cache any more."""


def turns_to_pay_back(prices: Prices, moment: Moment) -> float:
    """Turns until a condensation has saved its cost: 0 if it saves at once, infinity if it never does."""
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
    """The price of a call; `cached` of its `prompt` tokens came from a cache."""
    fresh = max(prompt - cached, 0)
    return (fresh * prices.input + cached * prices.cached_input + completion * prices.output) / _MILLION


ON_VOTES, ON_EMBEDDINGS = "judge_tokens", "embedding_tokens"


def spent_before(context: RequestContext, total: str) -> int:
    """One of the session's totals, as it was when the request came."""
    return context.recognised.session.totals.get(total, 0) if context.recognised.session else 0


def remaining_after_votes(context: RequestContext, share: float) -> int:
    """Tokens of the allowance that votes have not spent; embeddings are not counted. Negative if votes overspent it."""
    budget = context.policy.budget
    window = budget.nominal_window if budget else 0
    forwarded = spent_before(context, "forwarded_tokens") + context.measured.tokens
    return int(window + share * forwarded) - spent_before(context, ON_VOTES)


def remaining(context: RequestContext, share: float) -> int:
    """Tokens that the session may still spend on votes and embeddings."""
    return remaining_after_votes(context, share) - spent_before(context, ON_EMBEDDINGS)
