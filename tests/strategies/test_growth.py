"""What clients and models write costs in proportion to its length, whatever it is: no text can hold up the others.

No clock is asked. A program that reads the texts must end within a bound that is many times what it takes, and that
work for the square of a text's length misses by minutes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strategies.core.ledger import MAX_CHARACTERS, NEWEST, OLDEST, worth_reading
from strategies.core.rules import MAX_CHARACTERS as READ
from strategies.core.rules import MAX_RULES, find_rules, merge_rules
from tests.strategies.pathological import READERS

ROOT = Path(__file__).resolve().parents[2]
BOUND = 45.0
"""Seconds for all texts together; a few are enough on a machine with nothing else to do."""


@pytest.mark.parametrize("area", READERS)
def test_texts_of_any_form_are_read_in_time(area: str) -> None:
    reading = [sys.executable, "-m", "tests.strategies.pathological", area]
    try:
        ended = subprocess.run(reading, cwd=ROOT, timeout=BOUND, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired as late:
        told = (late.stdout or b"").decode().rpartition("\r")[2]
        pytest.fail(f"not read within {BOUND:.0f} s: {told}")
    assert ended.returncode == 0, ended.stderr


def test_of_a_message_that_is_far_too_long_its_beginning_and_its_end_are_read_for_rules() -> None:
    pasted = "The log says nothing of it. " * READ
    text = f"Never use sudo.\n{pasted}\nNever use tabs.\n{pasted}\nNever use npm."
    assert find_rules(text) == ["Never use sudo.", "Never use npm."]


def test_a_long_history_brings_no_more_rules_than_a_ledger_could_show_and_those_said_first_stay() -> None:
    told = [f"Never open door {number}." for number in range(2 * MAX_RULES)]
    assert merge_rules([], told) == told[:MAX_RULES]


def test_wishes_take_no_room_from_rules_that_were_said_after_any_number_of_them() -> None:
    wishes = [f"Please use hall {number}." for number in range(2 * MAX_RULES)]
    assert merge_rules([], [*wishes, "Never open door 1."]) == [*wishes[:MAX_RULES], "Never open door 1."]


def test_a_task_that_is_done_leaves_its_room_to_another_one() -> None:
    told = [f"[ ] open door {number}" for number in range(MAX_RULES)]
    assert merge_rules(told, ["[x] open door 7", "[ ] shut it"]) == [*told[:7], *told[8:], "[ ] shut it"]


@pytest.mark.parametrize("rounds", [0, 1, 40, 1_000])
def test_facts_of_a_short_history_are_all_looked_for(rounds: int) -> None:
    assert worth_reading([100] * rounds) == list(range(rounds))


def test_facts_of_a_long_history_are_looked_for_where_it_begins_and_where_it_ends() -> None:
    read = worth_reading([MAX_CHARACTERS] * 1_000)
    assert len(read) == (OLDEST // MAX_CHARACTERS) + (NEWEST // MAX_CHARACTERS)
    assert read[0] == 0
    assert read[-1] == 999


def test_of_a_long_message_what_is_looked_at_counts_and_not_what_it_has() -> None:
    assert worth_reading([10**9, 10, 10**9]) == [0, 1, 2]
