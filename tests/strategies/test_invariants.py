"""Invariants 1 to 3 of the design, for every strategy and pipelines of them, over conversations of every kind."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import TABLE
from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.plan import head_pieces, newest_is_shortened
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.pipeline import Outcome
from tests.strategies.driving import Reply, attempted, failing, good, wordy
from tests.strategies.invariants import faults, least_possible, orphans_and_gaps
from tests.support.transcripts import (
    Body,
    Recorded,
    conversations,
    from_cache,
    largest_of_each_kind,
    recorded,
    tiktoken_counter,
    view_of,
)

PIPELINES = [*TABLE, "mask+half-window", "shorten+half-window", "recent+mask+extract", "half-window+shorten+recent"]
REQUIREMENTS = [Requirement.SOFT, Requirement.HARD, Requirement.FORCED, Requirement.PREPARE]
WINDOWS = [300, 1_000, 2_500, 8_000]

STABLE = settings(
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEWER = settings(STABLE, max_examples=STABLE.max_examples // 2)
VIOLENT = settings(STABLE, derandomize=False, max_examples=3_000)


def judged(requirement: Requirement, pipeline: str, view: View, window: int, reply: Reply = good) -> Outcome | None:
    """Runs a pipeline twice, the second time on messages from the cache: both outcomes are the same and sound."""
    budget = Budget.of(window)
    outcome: Outcome | None = None
    failures: set[str] = set()
    try:
        outcome = attempted(requirement, pipeline, view, budget, reply)
    except StrategyError as error:
        failures.add(error.reason)
    if outcome is not None:
        failures |= set(outcome.reasons.values())
        again = attempted(requirement, pipeline, from_cache(view), budget, reply)
        assert head_pieces(again.view) == head_pieces(outcome.view)
        assert outcome.view.tokens < view.tokens
        assert faults(outcome.view, budget, shortened=newest_is_shortened(outcome.view)) == []
    assert "invalid-plan" not in failures
    if requirement in (Requirement.HARD, Requirement.FORCED):
        check_usable(outcome.view if outcome else view, budget)
    return outcome


def check_usable(view: View, budget: Budget) -> None:
    """A sound conversation is brought to usable wherever that is possible."""
    is_sound = not orphans_and_gaps(dict(message.body) for message in view.transcript.chain)
    if is_sound and view.tokens > budget.usable:
        assert least_possible(view, budget) > budget.usable


replies = st.sampled_from([good, wordy, failing])
requests = st.tuples(st.sampled_from(REQUIREMENTS), st.sampled_from(WINDOWS), st.sampled_from([0, 40, 400]))


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(bodies=conversations(), request=requests, reply=replies)
@STABLE
def test_every_strategy_keeps_the_invariants(
    pipeline: str, bodies: list[Body], request: tuple[Requirement, int, int], reply: Reply
) -> None:
    requirement, window, fixed = request
    judged(requirement, pipeline, view_of(bodies, fixed), window, reply)


@pytest.mark.parametrize("pipeline", PIPELINES)
@given(bodies=conversations(broken=True), request=requests)
@STABLE
def test_every_strategy_keeps_the_invariants_of_broken_lists(
    pipeline: str, bodies: list[Body], request: tuple[Requirement, int, int]
) -> None:
    requirement, window, fixed = request
    judged(requirement, pipeline, view_of(bodies, fixed), window)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("broken", [False, True], ids=["sound", "broken"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_invariants_hold_over_many_conversations(pipeline: str, broken: bool) -> None:
    @given(bodies=conversations(broken=broken, at_most=60), request=requests, reply=replies)
    @VIOLENT
    def check(bodies: list[Body], request: tuple[Requirement, int, int], reply: Reply) -> None:
        requirement, window, fixed = request
        judged(requirement, pipeline, view_of(bodies, fixed), window, reply)

    check()


@pytest.mark.parametrize("pipeline", ["mask+half-window", "summary", "semantic", "extract", "recent", "shorten"])
def test_the_invariants_hold_over_recorded_conversations(pipeline: str) -> None:
    condensed = [
        judged(requirement, pipeline, view, window)
        for view in [view_of(one.messages) for one in largest_of_each_kind(at_most=100)]
        for window in (1_000, 4_000, 16_000)
        for requirement in (Requirement.SOFT, Requirement.HARD)
    ]
    assert any(condensed)


def test_the_invariants_hold_with_a_real_tokenizer() -> None:
    counter = tiktoken_counter()
    condensed = [
        judged(requirement, "mask+half-window", view, window, reply)
        for view in [view_of(one.messages, 50, counter) for one in largest_of_each_kind(at_most=100)]
        for window in (1_200, 4_000)
        for requirement, reply in ((Requirement.HARD, good), (Requirement.HARD, failing), (Requirement.FORCED, wordy))
    ]
    assert sum(outcome is not None for outcome in condensed) > len(condensed) / 2


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("window", [4_000, 8_000, 32_000])
def test_the_invariants_hold_over_all_recorded_conversations(pipeline: str, window: int) -> None:
    for one in [*recorded(), *recorded("traces-dev-long")]:
        for end in _ends(one):
            judged(Requirement.HARD, pipeline, view_of(one.messages[:end]), window)


def _ends(one: Recorded) -> list[int]:
    """The whole conversation, and where it had gone half of the way."""
    return [len(one.messages), len(one.messages) // 2]
