"""What clients and models write costs in proportion to its length, whatever it is: no text can hold up the others."""

import re

import pytest

from strategies.core.ledger import MAX_CHARACTERS, NEWEST, OLDEST, worth_reading
from strategies.core.rules import MAX_CHARACTERS as READ
from strategies.core.rules import MAX_RULES, Rules, find_rules
from tests.strategies.pathological import FORMS, READERS
from tests.support.growth import grows_too_fast


def slow(area: str, step: int) -> set[tuple[str, str]]:
    """The readers of an area, each with a form that it reads too slowly; of every `step`th form."""
    return {
        (name, made(8))
        for place, (name, read) in enumerate(READERS[area].items())
        for made in FORMS[place % step :: step]
        if grows_too_fast(read, made)
    }


@pytest.mark.parametrize("area", READERS)
def test_texts_of_many_forms_are_read_in_time(area: str) -> None:
    assert not slow(area, 4)


@pytest.mark.torture
@pytest.mark.parametrize("area", READERS)
def test_texts_of_any_form_are_read_in_time(area: str) -> None:
    assert not slow(area, 1)


def test_work_for_the_square_of_a_length_would_be_seen() -> None:
    assert grows_too_fast(re.compile(r"\[[^]]*\]").findall, lambda length: "[" * length)


def test_work_in_proportion_to_the_length_is_passed() -> None:
    assert not grows_too_fast(re.compile(r"\[").findall, lambda length: "[" * 100 * length)


def test_a_long_messages_beginning_and_end_are_read_for_rules() -> None:
    pasted = "The log says nothing of it. " * READ
    text = f"Never use sudo.\n{pasted}\nNever use tabs.\n{pasted}\nNever use npm."
    assert find_rules(text) == ["Never use sudo.", "Never use npm."]


def merged(*messages: list[str]) -> list[str]:
    rules = Rules()
    for said in messages:
        rules.hear("\n".join(said), said)
    return list(rules)


def test_a_long_history_brings_its_first_rules_only() -> None:
    told = [f"Never open door {number}." for number in range(2 * MAX_RULES)]
    assert merged(told) == told[:MAX_RULES]


def test_many_wishes_take_no_room_from_later_rules() -> None:
    wishes = [f"Please use hall {number}." for number in range(2 * MAX_RULES)]
    assert merged([*wishes, "Never open door 1."]) == [*wishes[:MAX_RULES], "Never open door 1."]


def test_a_task_that_is_done_leaves_its_room_to_another_one() -> None:
    told = [f"[ ] open door {number}" for number in range(MAX_RULES)]
    assert merged(told, ["[x] open door 7", "[ ] shut it"]) == [*told[:7], *told[8:], "[ ] shut it"]


@pytest.mark.parametrize("rounds", [0, 1, 40, 1_000])
def test_facts_of_a_short_history_are_all_looked_for(rounds: int) -> None:
    assert worth_reading([100] * rounds) == list(range(rounds))


def test_facts_are_looked_for_at_both_ends_of_long_histories() -> None:
    read = worth_reading([MAX_CHARACTERS] * 1_000)
    assert len(read) == (OLDEST // MAX_CHARACTERS) + (NEWEST // MAX_CHARACTERS)
    assert read[0] == 0
    assert read[-1] == 999


def test_only_the_part_of_a_message_looked_at_counts() -> None:
    assert worth_reading([10**9, 10, 10**9]) == [0, 1, 2]
