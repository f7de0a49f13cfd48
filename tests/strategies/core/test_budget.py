"""How many tokens there are: reserve, marks, caps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget, Marks, Scale, reserve_for
from tests.strategies.test_invariants import STABLE


@pytest.mark.parametrize(
    ("window", "asked", "setting", "reserve"),
    [
        (8_000, None, None, 1_000),
        (128_000, None, None, 4_096),
        (8_000, 500, None, 500),
        (8_000, 500, 2_000, 500),
        (8_000, 6_000, None, 4_000),
        (8_000, None, 2_000, 2_000),
        (8_000, None, 6_000, 4_000),
        (8_000, None, 0, 0),
        (8_000, None, -5, 0),
        (8_000, 0, None, 1_000),
        (8_000, -1, 700, 700),
    ],
)
def test_the_reserve_is_asked_set_or_an_eighth(
    window: int, asked: int | None, setting: int | None, reserve: int
) -> None:
    assert reserve_for(window, asked, setting) == reserve
    assert Budget.of(window, reply_length=asked, reserve=setting).usable == window - reserve


def test_marks_are_shares_of_usable() -> None:
    budget = Budget.of(9_000, reserve=1_000)
    assert (budget.usable, budget.prepare, budget.trigger, budget.target, budget.step) == (
        8_000,
        5_600,
        6_800,
        4_000,
        1_200,
    )
    assert budget.goal == budget.target
    assert budget.with_goal(7).goal == 7


def test_a_models_own_input_limit_bounds_usable() -> None:
    assert Budget.of(9_000, reserve=1_000, max_input=5_000).usable == 5_000
    assert Budget.of(9_000, reserve=1_000, max_input=50_000).usable == 8_000


@pytest.mark.parametrize(("window", "least", "cap", "task"), [(4_096, 256, 1_024, 512), (128_000, 512, 12_800, 2_000)])
def test_the_least_headroom_and_caps_follow_the_window(window: int, least: int, cap: int, task: int) -> None:
    budget = Budget.of(window)
    assert (budget.least_headroom, budget.replacement_cap, budget.task_cap) == (least, cap, task)


def test_headroom_is_negative_where_a_view_does_not_fit() -> None:
    budget = Budget.of(1_000, reserve=100)
    assert (budget.headroom(800), budget.headroom(950)) == (100, -50)


shares = st.floats(-1, 3, allow_nan=False)


@given(marks=st.builds(Marks, shares, shares, shares, shares))
@STABLE
def test_marks_that_contradict_each_other_give_way_to_the_trigger(marks: Marks) -> None:
    used = marks.clamped()
    assert 0 < used.trigger <= 1
    assert 0 <= used.prepare <= used.trigger
    assert 0 < used.target <= 0.8 * used.trigger
    assert 0 <= used.step <= 1
    assert used.clamped() == used


@given(
    window=st.integers(1, 200_000), asked=st.none() | st.integers(0, 300_000), marks=st.builds(Marks, shares, shares)
)
@STABLE
def test_every_budget_is_in_order(window: int, asked: int | None, marks: Marks) -> None:
    budget = Budget.of(window, reply_length=asked, marks=marks)
    assert window // 2 <= budget.usable <= window
    assert 0 <= budget.target <= budget.trigger <= budget.usable
    assert budget.prepare <= budget.trigger


scales = st.builds(Scale, st.integers(-2_000, 40_000), st.floats(0.3, 4.0))


@given(st.integers(256, 200_000), scales, st.integers(0, 100_000))
def test_a_view_that_fits_a_scaled_budget_fits_what_the_upstream_counts(window: int, scale: Scale, tokens: int) -> None:
    nominal = Budget.of(window, max_input=window * 3 // 4)
    budget = nominal.scaled(scale)
    if 0 < tokens <= budget.usable:
        assert scale.upstream(tokens) <= nominal.usable + 4  # a token of ours is four of the upstream's at most
    assert budget.upstream_window == window
    assert budget.goal == budget.target <= budget.trigger <= budget.usable


@given(st.integers(256, 200_000), st.integers(0, 100_000))
def test_a_scale_of_one_changes_nothing(window: int, tokens: int) -> None:
    nominal = Budget.of(window)
    assert nominal.scaled(Scale()) is nominal
    assert Scale().upstream(tokens) == tokens


def test_a_budget_smaller_than_what_upstreams_add_has_no_room() -> None:
    assert Budget.of(4_000).scaled(Scale(9_000, 1.0)).usable == 0


@given(scales, st.integers(0, 100_000))
def test_counts_there_and_back_are_no_more_than_they_were(scale: Scale, tokens: int) -> None:
    if (counted := scale.upstream(tokens)) > 0:
        assert scale.own(counted) <= tokens + 1 / scale.slope + 1
