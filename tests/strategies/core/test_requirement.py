"""When a view must be condensed, and the table of what that allows."""

import pytest

from strategies.core.budget import Budget
from strategies.core.requirement import RULES, Requirement, Rule, has_grown, may_be_raised, requirement_for

BUDGET = Budget.of(9_000, reserve=1_000)  # usable 8,000: trigger 6,800, step 1,200, floor 512


@pytest.mark.parametrize(
    ("tokens", "since", "expected"),
    [
        (6_799, None, None),
        (6_800, None, Requirement.SOFT),
        (7_000, 5_900, None),
        (7_100, 5_900, Requirement.SOFT),
        (7_488, 7_400, None),
        (7_489, 7_400, Requirement.HARD),
        (20_000, 19_999, Requirement.HARD),
    ],
)
def test_the_table_of_sizes(tokens: int, since: int | None, expected: Requirement | None) -> None:
    assert requirement_for(tokens, BUDGET, since=since, called=tokens >= BUDGET.trigger) is expected


def test_force_is_answered_at_any_size() -> None:
    assert requirement_for(1, BUDGET, since=1, called=False, forced=True) is Requirement.FORCED


def test_a_view_has_grown_by_a_step_measured_from_the_last_condensation() -> None:
    assert has_grown(1, BUDGET, None)
    assert not has_grown(5_199, BUDGET, 4_000)
    assert has_grown(5_200, BUDGET, 4_000)


@pytest.mark.parametrize(
    ("since", "due"),
    [
        (4_000, 5_200),  # a step
        (6_000, 6_744),  # half of the 1,488 that are left until it is HARD
        (7_400, 7_444),
    ],
)
def test_a_preparation_waits_for_a_step_or_half_the_rest(since: int, due: int) -> None:
    assert not may_be_raised(Requirement.PREPARE, due - 1, BUDGET, since)
    assert may_be_raised(Requirement.PREPARE, due, BUDGET, since)


def test_a_preparation_for_a_too_long_view_does_not_wait() -> None:
    assert may_be_raised(Requirement.PREPARE, 7_600, BUDGET, 7_600)


def test_what_is_taken_at_the_trigger_waits_for_a_whole_step() -> None:
    assert not may_be_raised(Requirement.SOFT, 7_199, BUDGET, 6_000)
    assert may_be_raised(Requirement.SOFT, 7_200, BUDGET, 6_000)


def test_the_rules_are_those_of_the_design() -> None:
    assert RULES[Requirement.PREPARE] == Rule(asks=True, waits=True, least_shrink=0.1, least_room=2, ladder=False)
    assert RULES[Requirement.SOFT] == Rule(asks=False, waits=True, least_shrink=0.1, least_room=2, ladder=False)
    for requirement in (Requirement.HARD, Requirement.FORCED, Requirement.OVERFLOW):
        assert RULES[requirement] == Rule(asks=True, waits=False, least_shrink=0.0, least_room=0, ladder=True)
