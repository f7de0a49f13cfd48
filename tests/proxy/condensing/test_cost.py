"""When a condensation pays: by what it breaks, what it leaves out, and what our calls cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.condensing.cost import Moment, price_of, turns_to_pay_back
from proxy.settings.tables import Prices

PRICES = Prices(input=2.5, cached_input=1.25, output=10.0)
CHEAP_CACHE = Prices(input=3.0, cached_input=0.3, output=15.0)
tokens = st.integers(0, 200_000)


def test_a_cold_cache_pays_at_once() -> None:
    assert turns_to_pay_back(CHEAP_CACHE, Moment(100_000, 50_000, 2_000, 0.0, is_cold=True)) == 0


def test_a_warm_cache_pays_after_the_turns_that_reading_anew_costs() -> None:
    # 48,000 tokens are read anew for 2.7 more a million; each turn reads 50,000 fewer for 0.3, this one among them.
    turns = turns_to_pay_back(CHEAP_CACHE, Moment(100_000, 50_000, 2_000, 0.0, is_cold=False))
    assert turns == pytest.approx((48_000 * 2.7 - 50_000 * 0.3) / (50_000 * 0.3))


def test_calls_of_our_own_are_counted() -> None:
    moment = Moment(100_000, 50_000, 2_000, 0.0, is_cold=False)
    assert turns_to_pay_back(PRICES, moment._replace(calls=0.5)) > turns_to_pay_back(PRICES, moment)


def test_what_leaves_nothing_out_never_pays() -> None:
    assert turns_to_pay_back(PRICES, Moment(10_000, 10_000, 0, 0.1, is_cold=True)) == math.inf


@given(tokens, tokens, tokens, st.floats(0, 5), st.booleans(), st.integers(0, 50_000))
def test_leaving_out_more_never_pays_later(
    before: int, after: int, fixed: int, calls: float, is_cold: bool, more: int
) -> None:
    less = turns_to_pay_back(CHEAP_CACHE, Moment(before, after, fixed, calls, is_cold))
    further = turns_to_pay_back(CHEAP_CACHE, Moment(before, max(after - more, 0), fixed, calls, is_cold))
    assert 0 <= further <= less or math.isclose(further, less)


def test_a_call_costs_what_is_fresh_what_is_cached_and_the_reply() -> None:
    assert price_of(PRICES, prompt=1_000_000, cached=400_000, completion=100_000) == pytest.approx(1.5 + 0.5 + 1.0)
