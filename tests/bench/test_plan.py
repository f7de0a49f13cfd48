from __future__ import annotations

import pytest

from bench.plan import STRATEGIES, Row, filled_budget, markdown, measure, verdict
from tests.support.histories import agent_history
from tests.support.planning import counted
from tests.support.transcripts import WORDS


def row(rounds: int, milliseconds: float, what: str = "mask") -> Row:
    return Row("at the trigger", what, rounds, milliseconds)


def test_a_generated_history_is_the_same_every_time() -> None:
    assert agent_history(20) == agent_history(20)


def test_a_shorter_history_is_the_beginning_of_a_longer_one() -> None:
    assert agent_history(40)[: len(agent_history(20))] == agent_history(20)


def test_a_generated_history_has_as_many_rounds_as_were_asked_for_and_a_user_message_every_fourth() -> None:
    transcript = counted(agent_history(40), WORDS)

    roles = [message.role.value for message in transcript.chain]

    assert (roles.count("assistant"), roles.count("tool"), roles.count("user")) == (40, 40, 10)


@pytest.mark.parametrize("tokens", [9_000, 40_000, 2_000_000])
def test_the_budget_is_that_of_the_window_which_the_history_just_fills(tokens: int) -> None:
    budget = filled_budget(tokens)

    assert tokens * 0.99 <= budget.trigger <= tokens


@pytest.mark.torture
def test_all_strategies_are_measured_for_both_windows() -> None:
    rows = measure(rounds=(8,), runs=1)

    for scenario in ("at the trigger", "128k window"):
        assert {each.what for each in rows if each.scenario == scenario} == {*STRATEGIES}


def test_the_table_has_a_line_for_each_strategy_and_a_column_for_each_length() -> None:
    rows = [row(500, 10.0), row(5_000, 150.0), row(500, 1.0, "off"), row(5_000, 10.0, "off")]

    assert markdown(rows).splitlines() == [
        "| at the trigger | 500 rounds | 5,000 rounds | µs a round | target |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| `mask` | 10.0 | 150.0 | 30.0 | met |",
        "| `off` | 1.0 | 10.0 | 2.0 | met |",
    ]


def test_a_missed_target_names_the_lengths() -> None:
    assert verdict([row(50, 10.0), row(500, 900.0), row(5_000, 200.0)]) == "missed at 50 and 5,000"
    assert verdict([row(50, 9.9), row(5_000, 199.9)]) == "met"
