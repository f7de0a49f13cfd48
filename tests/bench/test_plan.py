import pytest

from bench.plan import filled_budget, growth, row
from tests.support.histories import agent_history, long_chat
from tests.support.planning import counted
from tests.support.transcripts import WORDS


def test_a_generated_history_is_the_same_every_time() -> None:
    assert agent_history(20) == agent_history(20)


def test_a_shorter_history_is_the_beginning_of_a_longer_one() -> None:
    assert agent_history(40)[: len(agent_history(20))] == agent_history(20)


def test_a_generated_history_has_the_rounds_that_were_asked_for() -> None:
    transcript = counted(agent_history(40), WORDS)

    roles = [message.role.value for message in transcript.chain]

    assert (roles.count("assistant"), roles.count("tool"), roles.count("user")) == (40, 40, 10)


@pytest.mark.parametrize("tokens", [9_000, 40_000, 2_000_000])
def test_the_budget_is_that_of_the_window_which_the_history_just_fills(tokens: int) -> None:
    budget = filled_budget(tokens)

    assert tokens * 0.99 <= budget.trigger <= tokens


def test_a_row_has_a_column_for_each_length() -> None:
    assert row("at the trigger", "mask", {500: 10.0, 5_000: 150.0}) == {
        "planned": "at the trigger",
        "strategy": "`mask`",
        "500 rounds": 10.0,
        "5,000 rounds": 150.0,
        "µs a round": 30.0,
        "target": "met",
    }


def test_a_missed_target_names_the_lengths() -> None:
    assert row("", "mask", {50: 10.0, 500: 900.0, 5_000: 200.0})["target"] == "missed at 50 and 5,000"
    assert row("", "mask", {50: 9.9, 5_000: 199.9})["target"] == "met"


def test_ten_times_the_rounds_may_take_fifteen_times_as_long() -> None:
    assert growth({50: 1.0, 500: 100.0, 5_000: 1_500.0}) == "met"
    assert growth({500: 100.0, 5_000: 2_400.0}) == "missed: 24.0 times as long"
    assert growth({50: 1.0}) == "met"


def test_a_generated_chat_is_half_the_users_and_the_same_every_time() -> None:
    chat = long_chat(20)
    assert chat == long_chat(20)
    assert [message["role"] for message in chat[-3:]] == ["user", "assistant", "user"]
