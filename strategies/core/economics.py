"""What conversations cost, and when condensing pays. Pure arithmetic: prompt lengths and prefixes in, money out.

docs/internals/economics.md has an example and the formulas. The best trigger follows from one cycle, in which a view
grows from its landing `L0` to the trigger `L` by `g` per request. Its (L − L0) / g requests read (L + L0) / 2 tokens on
average, and it is condensed once, for `C`. So a request costs p_read × (L + L0) / 2 + C × g / (L − L0), apart from
terms that do not depend on `L`. The minimum is at L = L0 + √(2 × g × C / p_read), the rule of StaySwitch.

All sizes are in tokens as the upstream counts them; money is in the currency of the prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, sqrt
from typing import NamedTuple

from strategies.core.budget import TARGET_UNDER_TRIGGER, Budget, Cause, Marks
from strategies.core.condensation import Condensation

_MILLION = 1_000_000
KEPT_REQUESTS = 2  # how many of the newest requests stay in the cheapest view; CliffCompaction keeps as many steps
_RECORD_SHARE = 0.5  # the share of its bound that a record takes on average
_MAX_RECORD = 3_700  # the maximum number of tokens of a record that rules make, its ledger included
MIN_ROOM = 2  # how many requests must fit between the target and the trigger
LEAST_WORTH = 1 / 6  # the share of the cost of prompts that `auto` must save: less is not worth what a view forgets


class PriceStep(NamedTuple):
    """From which size on a whole prompt costs more: above so many tokens, all prices of its input, and its reply's."""

    above: int
    input: float = 2.0
    output: float = 1.5


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in any one currency; raises `ValueError` for a negative price."""

    input: float  # tokens of a prompt that the upstream reads anew
    cached_input: float  # tokens of a prompt that the upstream has in its cache
    cache_write: float  # tokens of a prompt that the upstream reads anew and writes to its cache
    output: float = 0.0
    step: PriceStep | None = None

    def __post_init__(self) -> None:
        if min(self.input, self.cached_input, self.cache_write, self.output) < 0:
            raise ValueError("a price must be at least 0")

    def of_call(self, *, prompt: int, cached: int = 0, reply: int = 0, written: int = 0) -> float:
        """The price of one call. Of its prompt, `cached` tokens come from the cache, `written` are written to it."""
        fresh = max(prompt - cached - written, 0)
        more, more_reply = self._factors(prompt)
        read = fresh * self.input + cached * self.cached_input + written * self.cache_write
        return (read * more + reply * self.output * more_reply) / _MILLION

    def of_prompt(self, prompt: int, common: int) -> float:
        """The price of a prompt. Its first `common` tokens come from the cache; the rest is written to it."""
        cached = min(common, prompt)
        more, _ = self._factors(prompt)
        return ((prompt - cached) * self.cache_write + cached * self.cached_input) * more / _MILLION

    def _factors(self, prompt: int) -> tuple[float, float]:
        """By how much a prompt of this size makes all of its input dearer, and its reply."""
        step = self.step
        return (step.input, step.output) if step is not None and prompt > step.above else (1.0, 1.0)


class Condensing(NamedTuple):
    """A condensation as the cost model sees it; sizes in tokens."""

    landing: int  # the size of the view just after it
    head: int  # the size of what precedes the history and stays: tools and system messages
    calls: float = 0.0  # the price of our own calls for it
    continues: bool = False  # whether such a call reads the view, which the upstream has in its cache

    def cost(self, prices: Prices) -> float:
        """The price of reading the changed part of the prompt anew, and of the calls."""
        anew = max(self.landing - self.head, 0) * max(prices.cache_write - prices.cached_input, 0.0) / _MILLION
        return anew + self.calls


def best_trigger(condensing: Condensing, growth: float, prices: Prices) -> float:
    """The size in tokens at which to condense a view that grows by `growth` per request; infinity for never."""
    price = prices.cached_input / _MILLION
    if price <= 0 or growth <= 0:
        return inf
    return condensing.landing + sqrt(2 * growth * condensing.cost(prices) / price)


def cost_of_request(condensing: Condensing, growth: float, trigger: float, prices: Prices) -> float:
    """The average cost of a request, without its reply, if views are condensed at `trigger` tokens."""
    span = trigger - condensing.landing
    if span <= 0:
        return inf
    carried = (trigger + condensing.landing) / 2 * prices.cached_input / _MILLION
    added = growth * prices.cache_write / _MILLION
    return carried + added + condensing.cost(prices) * min(growth / span, 1.0)


# -- the trigger of a session ----------------------------------------------------------------------------------------


class Advice(NamedTuple):
    """What `auto` would do; sizes in tokens of our own count."""

    trigger: int
    target: int  # the size that it condenses to, before what the strategy cannot cut
    saves: float
    """The share of the cost of prompts that this saves against the configured marks; 0 if that is not worth it."""

    def __str__(self) -> str:
        return f"trigger={self.trigger}; target={self.target}; saves={self.saves:.2f}"


def condensing_of(
    budget: Budget,
    prices: Prices,
    head: int,
    growth: float,
    *,
    asks: bool,
    continues: bool = False,
    seen: Sequence[Condensation] = (),
) -> Condensing:
    """The condensation to expect if views grow by `growth` tokens per request after `head` constant tokens.

    Its landing and the price of its calls are the means of those that the session has `seen`. Before the first one, it
    is expected to land at the target, and to cost a call if its first stage `asks` a model. A call that `continues` the
    view reads all of it, from the upstream's cache.
    """
    landing = budget.target
    own = (budget.trigger if continues else max(budget.trigger - landing, 0)) + _record(budget) if asks else 0
    if seen:
        landing = sum([each.tokens_after for each in seen]) // len(seen)
        own = sum([each.own_tokens for each in seen]) // len(seen)
    reply = min(_record(budget), own) if own else 0
    calls = prices.of_call(prompt=own - reply, cached=own - reply if continues else 0, reply=reply)
    return Condensing(max(landing, int(head + 2 * growth)), head, calls, continues)


def advise(budget: Budget, prices: Prices, expected: Condensing, growth: float, files: int = 0) -> Advice:
    """The cheapest trigger and target for views that grow by `growth` tokens per request.

    `expected` is a condensation at the marks of the budget; for `files` see `cheapest_target`.
    """
    asks, mark = expected.calls > 0, budget.trigger
    record = _record(budget) if asks else 0
    target = cheapest_target(budget, expected.head, growth, files)
    # At any trigger, a call reads each token that it condenses once; so only its reply counts here.
    reply = prices.of_call(prompt=0, reply=record) if asks else 0.0
    deepest = Condensing(min(expected.landing, target), expected.head, reply)
    least = max(target + MIN_ROOM * growth, target / TARGET_UNDER_TRIGGER)
    trigger = ceil(min(max(best_trigger(deepest, growth, prices), least), mark))
    if expected.continues:
        deepest = deepest._replace(calls=prices.of_call(prompt=trigger, cached=trigger, reply=record))
    elif asks:
        deepest = deepest._replace(calls=prices.of_call(prompt=trigger - deepest.landing + record, reply=record))
    if budget.cause is not Cause.SHARE:
        expected = expected._replace(landing=deepest.landing)
    at_marks = cost_of_request(expected, growth, mark, prices)
    saves = 1 - cost_of_request(deepest, growth, trigger, prices) / at_marks if 0 < at_marks < inf else 0.0
    return Advice(trigger, target, saves) if saves >= LEAST_WORTH else Advice(mark, budget.target, 0.0)


def cheapest_target(budget: Budget, head: int, growth: float, files: int) -> int:
    """The target at which views cost least that grow by `growth` tokens per request, of which `head` tokens stay.

    The lower it is, the less is read anew and carried. So it is as low as possible: just head, record, the newest
    requests and, as an agent would read them again, the newest results about its `files`, in tokens.
    """
    return int(min(head + _record(budget) / _RECORD_SHARE + max(KEPT_REQUESTS * growth, files), budget.target))


def _record(budget: Budget) -> int:
    return int(min(budget.summary_cap, _MAX_RECORD) * _RECORD_SHARE)


def is_cheaper_continued(budget: Budget, prices: Prices) -> bool:
    """Whether a summary costs less if its call continues a view at the trigger, which the upstream has in its cache.

    The alternative is a call that reads the condensed part anew, without the rest of the view.
    """
    view = budget.trigger
    return prices.of_call(prompt=view, cached=view) < prices.of_call(prompt=view - budget.target)


def follow(budget: Budget, advice: Advice) -> Budget:
    """The budget with the marks of the advice. Preparations begin earlier and steps get smaller in proportion."""
    marks, usable = budget.marks, max(budget.usable, 1)
    trigger, target = advice.trigger / usable, advice.target / usable
    step = min(marks.step, max(trigger - target, 0.0))
    followed = budget.with_marks(Marks(marks.prepare * trigger / marks.trigger, trigger, target, step))
    return followed if advice.trigger >= budget.trigger else replace(followed, cause=Cause.SHARE, share_trigger=0)
