"""Labelled rules of people: which sentences these are, and how they are counted."""

from collections import Counter

from eval import rules


def test_sentences_are_those_that_were_labelled() -> None:
    text = "Rules:\n1. Never push, e.g. to main. Ask first!\n```\ncode. Not this.\n```\n最多三个。不要多。"
    assert [each for each in rules.sentences(text) if each] == [
        *("Rules:", "Never push, e.g. to main.", "Ask first!", "最多三个。", "不要多。")
    ]


def test_only_the_half_that_was_looked_at_is_measured() -> None:
    assert Counter(rules.labels().values()) == {"other": 588, "rule": 81, "doubtful": 81}


def test_rules_and_other_sentences_are_counted_apart() -> None:
    found = [rules.Found("a", "rule", True), rules.Found("a", "rule", False), rules.Found("b", "other", True)]
    assert rules.rows(found).splitlines()[-1] == "| all | 1 of 2 | 50 | 1 of 1 | 100 |"
