"""A statement that is made again with another value takes the place of the earlier one; in doubt both stay."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.core.rules import Rules, find_rules
from strategies.core.values import corrected, correction


def holding(*messages: str) -> list[str]:
    """The rules that hold after the user's messages."""
    rules = Rules()
    for message in messages:
        rules.hear(message, find_rules(message))
    return list(rules)


def stated(*messages: str) -> list[str]:
    """What holds after messages that are a rule each."""
    rules = Rules()
    for message in messages:
        rules.hear(message, [message])
    return list(rules)


def bare(rule: str) -> str:
    """A rule without the value that it replaced."""
    return re.sub(r" \(was [^)]*\)|（取代[^）]*）", "", rule)


SAME = [
    ("Our budget is $240 total.", "Our budget is $910 total."),
    ("Keep answers under 200 words.", "Please keep answers under 120 words."),
    ("The upload limit is 40.", "The upload limit is now 60."),
    ("The report is due on 14 March.", "The report is due on 21 March."),
    ("Maria owns the billing module.", "Tom owns the billing module."),
    ("The deadline is Friday.", "The deadline moved to Tuesday."),
    ("The owner is Dana.", "The owner is now Lee Park."),
    ("预算上限是500元。", "预算上限是800元。"),
    ("截止日期是周五。", "截止日期改到下周二。"),
    ("由王芳负责前端。", "由李雷负责前端。"),
]
DIFFERENT = [
    ("Never open door 1.", "Never open door 2."),
    ("Never deploy on Friday.", "Never deploy on Monday."),
    ("The staging timeout is 30 s.", "The production timeout is 60 s."),
    ("The budget for travel is $200.", "The budget for food is $300."),
    ("The deadline for the report is Friday.", "The deadline for the slides is Monday."),
    ("Maria owns billing.", "Tom owns search."),
    ("Use at least 2 sources.", "Use at most 5 sources."),
    ("The deadline is Friday.", "The budget is $500."),
    ("前端预算是500元。", "后端预算是800元。"),
    ("The API budget is 40 USD a day.", "The API budget is 900 USD a month."),
    ("Spend at most 5 USD per request.", "Spend at most 500 USD per month."),
    ("Our API budget is 40 USD.", "Our API budget is 35 EUR at most."),
    ("Keep penicillin away from the counter.", "Never allow wool at the counter."),
    ("Send the weekly report on Monday.", "Always discuss the weekly report on Wednesday."),
    ("The meeting must start at 10:00.", "The meeting must end at 11:00."),
    ("The flight from Oslo must be on Monday.", "The flight to Oslo must be on Friday."),
    ("Pods need at least 2 GB.", "Pods need at most 8 GB."),
    ("Never use https://a.example as the mirror.", "Never use https://b.example as the mirror."),
    ("The staging API must be at https://a.example.", "The staging dashboard must be at https://b.example."),
    ("必须从北京周一出发。", "必须到北京周五出发。"),
]


PARAPHRASED = [
    ("The API budget is 40 USD a day.", "We may spend 55 USD a day on the API now (was 40 USD)."),
    ("The API budget is $40 per day.", "We can spend up to 55 dollars daily on the API (was $40)."),
    ("The budget for the launch is $5,000.", "The launch budget was raised to $7,500 (was $5,000)."),
    ("The team wants the digest on Monday.", "Digest day of this team: Friday (was Monday)."),
    ("Keep titles under 60 characters.", "Titles must be at most 50 characters (was 60)."),
    ("The nightly backup runs at 02:00.", "Run the nightly backup at 03:30 (was 02:00)."),
    ("Report all times in Europe/Berlin.", "All reported times should use Asia/Tokyo (was Europe/Berlin)."),
    ("The release date is 2027-03-04.", "The release is fixed for 2027-04-05 and cannot move (was 2027-03-04)."),
    ("The upload timeout is 30 s.", "Uploads must have a timeout of 45 seconds (was 30 s)."),
    ("API 的预算是每天 40 美元。", "现在 API 每天可以花 55 美元（取代 40 美元）。"),
]


@pytest.mark.parametrize(("earlier", "later"), SAME)
def test_the_same_statement_with_another_value_replaces_the_first(earlier: str, later: str) -> None:
    assert holding(earlier, "Go on.", later) == [later]


@pytest.mark.parametrize(("earlier", "later"), PARAPHRASED)
def test_a_paraphrase_with_another_value_names_the_first(earlier: str, later: str) -> None:
    said = bare(later)
    assert stated(earlier, said) == stated(earlier, said, said) == [later]


@pytest.mark.parametrize(("earlier", "later"), DIFFERENT)
def test_statements_about_different_things_both_stay(earlier: str, later: str) -> None:
    assert stated(earlier, later) == [earlier, later]


def test_two_values_in_one_message_are_both_meant() -> None:
    said = "The deadline is Friday. The deadline is Monday."
    assert holding(said) == ["The deadline is Friday.", "The deadline is Monday."]


def test_a_paraphrase_that_fits_two_statements_replaces_neither() -> None:
    first, second = "The budget for ads is $200.", "The budget for prints is $300."
    assert holding(first, second, "The budget is now $900.") == [first, second, "The budget is now $900."]


def test_what_was_replaced_is_known() -> None:
    rules = Rules()
    for message in ("Our budget is $240.", "Our budget is $910."):
        rules.hear(message, find_rules(message))
    assert rules.replaced == ["Our budget is $240."]


@pytest.mark.parametrize(
    ("said", "then", "holds"),
    [
        ("Our budget is $240 total.", "no, 956", "Our budget is $956 total (was $240)."),
        ("Our budget is $240 total.", "Actually it is $956.", "Our budget is $956 total (was $240)."),
        ("The deadline is Friday.", "sorry, I meant Tuesday", "The deadline is Tuesday (was Friday)."),
        ("预算上限是500元。", "不对，是800元", "预算上限是800元（取代 500元）。"),
    ],
)
def test_a_bare_correction_changes_what_was_stated_just_before(said: str, then: str, holds: str) -> None:
    assert holding(said, then) == [holds]


@pytest.mark.parametrize(
    "then", ["no thanks", "No, 3 of them failed and I restarted.", "no, Tuesday", "ok, 956", "It is 956."]
)
def test_what_is_no_clear_correction_changes_nothing(then: str) -> None:
    assert holding("Our budget is $240 total.", then)[0] == "Our budget is $240 total."


def test_a_correction_that_comes_later_is_not_guessed_at() -> None:
    assert holding("Our budget is $240.", "How is it going?", "no, 956") == ["Our budget is $240."]


@given(st.text(max_size=120), st.text(max_size=60))
def test_any_text_is_read_and_a_sentence_without_value_is_never_corrected(sentence: str, value: str) -> None:
    found = correction(value)
    assert found is None or found in value
    if not any(character.isdigit() for character in sentence):
        assert corrected(sentence, "7") is None


@given(st.lists(st.sampled_from([said for pair in SAME + DIFFERENT for said in pair]), max_size=12))
def test_the_last_message_always_holds_and_nothing_stands_twice(messages: list[str]) -> None:
    held = stated(*messages)
    assert len(held) == len(set(held))
    assert {bare(rule) for rule in held} <= set(messages)
    if messages:
        assert messages[-1] in map(bare, held)
