"""The budget by which a refused view is condensed, once: it fits by the upstream's count, whatever ours is."""

from __future__ import annotations

import pytest

from proxy.condensing.refusals import MAX_RATIO, RefusedRequest, retry_budget
from proxy.overflow import Refusal, RefusedPart
from strategies.core.budget import Budget


def refusal(window: int | None = None, counted: int | None = None) -> Refusal:
    return Refusal(RefusedPart.INPUT, window, counted)


def test_where_counts_agree_the_target_of_the_learned_window_is_aimed_at() -> None:
    budget = Budget.of(4_096)
    aim = retry_budget(budget, refusal(4_096, 9_000), RefusedRequest(9_000, 9_000, 0))
    assert aim.target == pytest.approx(budget.target, abs=1)
    assert aim.trigger == pytest.approx(budget.trigger, abs=1)
    assert aim.window == budget.window


@pytest.mark.parametrize("ratio", [1.2, 1.5, 3.0])
def test_where_the_upstream_counts_more_the_aim_is_lower_by_as_much(ratio: float) -> None:
    budget = Budget.of(4_096)
    aim = retry_budget(budget, refusal(4_096, int(9_000 * ratio)), RefusedRequest(9_000, 9_000, 0))
    assert aim.target == pytest.approx(budget.target / ratio, rel=0.01)


def test_a_refusal_of_a_fitting_request_raises_the_count() -> None:
    aim = retry_budget(Budget.of(4_096), refusal(4_096), RefusedRequest(2_000, 2_000, 0))
    assert aim.trigger < 2_000 * 0.9 + 1
    assert aim.target * 4_096 / 2_000 <= 2_000


def test_a_count_of_another_thing_does_not_condense_to_nothing() -> None:
    aim = retry_budget(Budget.of(8_192), refusal(8_192, 900_000), RefusedRequest(9_000, 9_000, 0))
    assert aim.target == pytest.approx(Budget.of(8_192).target / MAX_RATIO, rel=0.01)


def test_room_is_left_for_a_reply_longer_than_half_of_the_window() -> None:
    aim = retry_budget(Budget.of(4_096, reply_length=3_000), refusal(4_096, 9_000), RefusedRequest(9_000, 9_000, 3_000))
    assert aim.target + 3_000 < 4_096


@pytest.mark.parametrize("window", [6_000, 54_000, 400_000])
def test_without_a_number_the_aim_is_a_share_of_what_was_refused(window: int) -> None:
    aim = retry_budget(Budget.of(window), refusal(), RefusedRequest(5_000, 7_500, 0))
    assert aim.trigger == pytest.approx(3_500, abs=1)
    assert aim.target == aim.trigger
