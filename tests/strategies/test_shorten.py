"""`shorten`: large results are cut, the largest most, the newest last."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.budget import Budget
from strategies.core.errors import Declined
from strategies.core.view import View
from strategies.shorten import level
from tests.strategies.driving import condensed, plan_of, stages_of, texts
from tests.strategies.test_invariants import STABLE
from tests.support.transcripts import Body, agent, assistant, call, step, tool, user, view_of, words


def shortened(bodies: list[Body], budget: Budget, **options: Any) -> View:
    return condensed("shorten", view_of(bodies), budget, **options)


def sizes(view: View) -> list[int]:
    """Tokens of each result."""
    return [item.message.tokens for item in view.items if item.message.body["role"] == "tool"]


MIXED = [user("go"), *step(0, 2_000), *step(1, 500), *step(2, 100), *step(3, 800)]


def test_the_largest_results_are_cut_most() -> None:
    budget = Budget.of(5_000, reserve=0).with_goal(2_200)
    view = shortened(MIXED, budget)
    large, middle, small, newest = sizes(view)
    assert large <= 700
    assert middle == sizes(view_of(MIXED))[1]
    assert small == sizes(view_of(MIXED))[2]
    assert newest == sizes(view_of(MIXED))[3]
    assert view.tokens <= 2_200


def test_results_of_one_size_are_cut_to_one_length() -> None:
    bodies = agent(5, size=500)
    *older, newest = sizes(shortened(bodies, Budget.of(10_000).with_goal(1_600)))
    assert max(older) - min(older) <= 20
    assert newest >= 500


def test_no_result_is_cut_below_its_least() -> None:
    budget = Budget.of(20_000).with_goal(0)
    assert min(sizes(shortened(agent(5, size=900), budget))) >= 100
    assert max(sizes(shortened(agent(5, size=900), budget, min_tokens=60))[:-1]) <= 60


def test_the_newest_round_is_cut_only_to_be_usable() -> None:
    bodies = [user("go"), *step(0, 300), *step(1, 1_000)]
    fitting = Budget.of(2_000, reserve=0).with_goal(100)
    assert sizes(shortened(bodies, fitting))[1] == sizes(view_of(bodies))[1]
    tight = Budget.of(700, reserve=0).with_goal(100)
    assert sizes(shortened(bodies, tight))[1] == sizes(view_of(bodies))[1]
    view = shortened(bodies, tight, newest=True)
    assert view.tokens <= 700
    assert 400 <= sizes(view)[1] <= 560


def test_a_cut_result_keeps_its_ends_and_its_call() -> None:
    bodies = [user("go"), assistant(None, call("x")), tool("x", f"BEGIN {words(900)} exit code 1"), *agent(2)[2:]]
    view = shortened(bodies, Budget.of(10_000).with_goal(400))
    assert texts(view)[2].startswith("BEGIN")
    assert texts(view)[2].endswith("exit code 1")
    assert view.items[2].answers == ("x",)


def test_only_output_in_a_user_message_is_cut() -> None:
    bodies = [
        user(words(900)),
        assistant("ls"),
        user("Observation: " + words(900)),
        assistant("more?"),
        user("Observation: b"),
    ]
    view = shortened(bodies, Budget.of(10_000).with_goal(1_200))
    assert texts(view)[0] == words(900)
    assert "left out" in texts(view)[2]


@pytest.mark.parametrize(
    ("bodies", "goal"),
    [(MIXED, 100_000), ([user(words(900))], 10), (agent(4, size=50), 10)],
    ids=["fits", "user", "small"],
)
def test_nothing_to_shorten_is_said(bodies: list[Body], goal: int) -> None:
    with pytest.raises(Declined) as declined:
        shortened(bodies, Budget.of(100_000).with_goal(goal))
    assert declined.value.reason == "nothing-to-shorten"


def test_its_metadata_says_whether_the_newest_round_was_cut() -> None:
    (strategy,) = stages_of("shorten", shorten={"newest": True})
    view = view_of([user("go"), *step(0, 300), *step(1, 1_000)])
    plan = plan_of(strategy, view, Budget.of(700, reserve=0).with_goal(100))
    assert plan.metadata == {"shortenedResultCount": 2, "newestRoundShortened": True}
    plan = plan_of(strategy, view, Budget.of(2_000, reserve=0).with_goal(100))
    assert plan.metadata == {"shortenedResultCount": 1, "newestRoundShortened": False}


@given(sizes=st.lists(st.integers(1, 1_000), max_size=12), total=st.integers(-100, 6_000))
@STABLE
def test_a_level_is_the_largest_that_fits(sizes: list[int], total: int) -> None:
    cap = level(sizes, total)
    assert cap >= 0
    if cap > 0:
        assert sum(min(size, cap) for size in sizes) <= total
    if sizes and cap < max(sizes):
        assert sum(min(size, cap + 1) for size in sizes) > total


def test_a_first_user_message_over_its_cap_gives_way_last_of_all() -> None:
    bodies = [user(words(900)), *step(0, 20), user("and now?")]
    view = shortened(bodies, Budget.of(1_024), newest=True)
    assert view.tokens <= Budget.of(1_024).usable
    assert "left out" in texts(view)[0]
    assert texts(view)[-1] == "and now?"
    with pytest.raises(Declined):
        shortened(bodies, Budget.of(1_024))
