"""The cost model: money from prompt lengths and prefixes, and the trigger that makes a conversation cheapest."""

from math import inf, isclose

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strategies.core.budget import Budget, Marks, Scale
from strategies.core.condensation import Condensation
from strategies.core.economics import (
    Advice,
    Condensing,
    Prices,
    advise,
    best_trigger,
    condensing_of,
    cost_of_request,
    follow,
    is_cheaper_continued,
)
from tests.support.transcripts import condensation_of

CHEAP = Prices(input=0.95, cached_input=0.16, cache_write=0.95, output=4.0)
RATIOS = Prices(input=1.0, cached_input=0.1, cache_write=1.25)

sizes = st.integers(0, 400_000)
money = st.floats(0.001, 100)
priced = st.tuples(st.floats(0.01, 1), st.floats(1, 1.25), money).map(
    lambda made: Prices(made[2], made[0] * made[2], made[1] * made[2], 5 * made[2])
)
condensings = st.tuples(st.integers(1, 200_000), st.floats(0, 1), st.floats(0, 0.1)).map(
    lambda made: Condensing(made[0], int(made[0] * made[1]), made[2])
)


def test_what_is_not_in_the_cache_is_written_to_it() -> None:
    assert isclose(RATIOS.of_prompt(1_000, 400), (600 * 1.25 + 400 * 0.1) / 1e6)


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Prices(1.0, -0.1, 1.0)


def test_the_best_trigger_of_the_example() -> None:
    prices = Prices(1.0, 0.1, 1.0)
    assert round(best_trigger(Condensing(40_000, 20_000), 1_000, prices)) == 58_974


def test_what_costs_nothing_to_carry_is_never_condensed() -> None:
    free = Prices(1.0, 0.0, 1.0)
    assert best_trigger(Condensing(10_000, 0), 1_000, free) == inf
    assert best_trigger(Condensing(10_000, 0), 0, RATIOS) == inf


@given(sizes, sizes, priced)
def test_a_longer_common_prefix_never_costs_more(prompt: int, common: int, prices: Prices) -> None:
    costs = [prices.of_prompt(prompt, cached) for cached in (prompt, common, 0)]
    assert costs == sorted(costs) or isclose(costs[0], costs[2])


@given(condensings, st.floats(10, 20_000), priced, st.floats(0.2, 5))
def test_no_other_trigger_is_cheaper_than_the_best(
    condensing: Condensing, growth: float, prices: Prices, factor: float
) -> None:
    best = best_trigger(condensing, growth, prices)
    # Within less than one request of the landing a view would be condensed with every request.
    assume(best - condensing.landing >= growth)
    other = condensing.landing + (best - condensing.landing) * factor
    assume(other - condensing.landing >= growth)
    least = cost_of_request(condensing, growth, best, prices)
    assert least <= cost_of_request(condensing, growth, other, prices) * (1 + 1e-9)


@given(condensings, st.floats(10, 20_000), priced)
def test_the_best_trigger_grows_with_growth_and_cost(condensing: Condensing, growth: float, prices: Prices) -> None:
    best = best_trigger(condensing, growth, prices)
    assert best >= condensing.landing
    assert best_trigger(condensing, growth * 2, prices) >= best
    assert best_trigger(condensing._replace(calls=condensing.calls + 1), growth, prices) >= best


COSTLY = Prices(input=3.0, cached_input=0.3, cache_write=3.0, output=15.0)


def test_a_call_costs_what_is_fresh_what_is_cached_and_the_reply() -> None:
    prices = Prices(input=2.5, cached_input=1.25, cache_write=2.5, output=10.0)
    assert prices.of_call(prompt=1_000_000, cached=400_000, reply=100_000) == pytest.approx(1.5 + 0.5 + 1.0)


# -- the trigger of a session ------------------------------------------------------------------------------------------

WIDE = Budget.of(200_000)


def made(*, tokens_after: int, own_tokens: int) -> Condensation:
    """A condensation that left a view of that size, after model calls of that size."""
    return condensation_of(tokens_before=166_000, tokens_after=tokens_after, own_tokens=own_tokens)


def test_an_agent_with_cheap_reads_is_cheapest_below_the_mark() -> None:
    advice = advise(WIDE, RATIOS, condensing_of(WIDE, RATIOS, 20_000, 500, asks=False), 500)
    # The head, a record and two requests stay; reading anew what follows the head costs little, so the trigger is near.
    assert 20_000 < advice.target < 26_000
    assert advice.target / 0.8 <= advice.trigger < WIDE.target
    assert 0.5 < advice.saves < 0.8


def test_what_an_agent_works_on_stays_in_the_cheapest_view() -> None:
    expected = condensing_of(WIDE, RATIOS, 20_000, 500, asks=False)
    without, some, more = (advise(WIDE, RATIOS, expected, 500, files) for files in (0, 30_000, 300_000))
    assert some.target == without.target + 30_000 - 2 * 500
    assert some.trigger > without.trigger
    assert 0 < some.saves < without.saves
    assert more.target == WIDE.target


def test_what_saves_less_than_a_sixth_is_left_alone() -> None:
    head, growth = 10_000, 1_000
    for window in range(20_000, 200_000, 2_000):
        budget = Budget.of(window)
        advice = advise(budget, RATIOS, condensing_of(budget, RATIOS, head, growth, asks=False), growth)
        assert advice.saves >= 1 / 6 or advice == Advice(budget.trigger, budget.target, 0.0)


def test_beside_most_auto_saves_less_because_that_condenses_as_deep() -> None:
    by_share = Budget.of(1_000_000, marks=Marks(trigger=0.1, target=0.05))
    by_most = Budget.of(1_000_000).at_most(by_share.trigger, None)
    share, most = (
        advise(each, RATIOS, condensing_of(each, RATIOS, 30_000, 1_000, asks=False), 1_000)
        for each in (by_share, by_most)
    )
    assert 0 < most.saves < share.saves


def test_a_small_window_leaves_the_trigger_at_its_mark() -> None:
    small = Budget.of(8_192)
    condensing = condensing_of(small, RATIOS, 2_000, 3_000, asks=True)
    assert condensing.calls > 0
    assert advise(small, RATIOS, condensing, 3_000) == Advice(small.trigger, small.target, 0.0)


def test_a_condensation_is_expected_to_be_like_those_before_it() -> None:
    seen = [made(tokens_after=60_000, own_tokens=0), made(tokens_after=40_000, own_tokens=30_000)]
    expected = condensing_of(WIDE, RATIOS, 20_000, 500, asks=True, seen=seen)
    reply = 1_850
    assert expected == Condensing(50_000, 20_000, RATIOS.of_call(prompt=15_000 - reply, reply=reply))
    assert condensing_of(WIDE, RATIOS, 90_000, 5_000, asks=False, seen=seen).landing == 100_000


def test_a_call_that_continues_the_view_reads_more_for_less() -> None:
    anew, continued = (condensing_of(WIDE, RATIOS, 20_000, 500, asks=True, continues=each) for each in (False, True))
    assert 0 < continued.calls < anew.calls
    assert advise(WIDE, RATIOS, continued, 500).trigger > 0


def test_the_budget_follows_advice() -> None:
    scaled = WIDE.scaled(Scale(1_000, 1.25))
    followed = follow(scaled, Advice(40_000, 30_000, 0.5))
    assert abs(followed.trigger - 40_000) <= 1
    assert abs(followed.target - 30_000) <= 1
    assert followed.goal == followed.target
    assert followed.prepare < scaled.prepare


@given(st.integers(2_000, 1_000_000), priced, st.integers(0, 300_000), st.floats(1, 50_000), st.booleans())
def test_marks_and_head_bound_trigger_and_target(
    window: int, prices: Prices, head: int, growth: float, asks: bool
) -> None:
    budget = Budget.of(window)
    condensing = condensing_of(budget, prices, head, growth, asks=asks)
    advice = advise(budget, prices, condensing, growth)
    assert advice.trigger <= budget.trigger
    assert 0.0 <= advice.saves < 1.0
    assert advice.target <= budget.target
    if advice.trigger < budget.trigger:
        assert advice.target >= min(head, budget.target)
        assert advice.trigger >= advice.target + 2 * growth
        assert follow(budget, advice).marks.clamped() == follow(budget, advice).marks


def test_a_summary_is_cheaper_continued_where_reads_from_the_cache_are_cheap() -> None:
    assert is_cheaper_continued(WIDE, RATIOS)
    assert not is_cheaper_continued(WIDE, Prices(1.0, 0.5, 1.0))


def cost_of_run(head: int, growth: int, trigger: int, target: int, least: int, prices: Prices) -> float:
    """What 300 requests cost that grow evenly and are cut to `target` at `trigger`, or to `least` if that is more."""
    view, landing = head + growth, max(target, least)
    cost = prices.of_prompt(view, 0)
    for _ in range(299):
        cut = view + growth >= trigger and landing < view
        view, before = (landing, head) if cut else (view + growth, view)
        cost += prices.of_prompt(view, before)
    return cost


@given(st.integers(1_000, 20_000), st.integers(200, 2_000), st.sampled_from([RATIOS, CHEAP, COSTLY]))
def test_automatic_triggers_cost_nearly_the_least(head: int, growth: int, prices: Prices) -> None:
    advice = advise(WIDE, prices, condensing_of(WIDE, prices, head, growth, asks=False), growth)
    least = head + 2 * growth + 3_700
    marks = [Budget.of(200_000, marks=Marks(trigger=share / 100)) for share in range(10, 86, 5)]
    fixed = min(
        cost_of_run(head, growth, budget.trigger, budget.target, least, prices)
        for budget in marks
        if budget.trigger > least
    )
    assert cost_of_run(head, growth, advice.trigger, advice.target, least, prices) <= fixed * 1.05
