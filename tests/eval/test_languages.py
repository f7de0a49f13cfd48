"""Rules in eight languages, and statements side by side, in talk that is made for them."""

import asyncio

import pytest

from eval import languages
from eval.views import said


def test_every_language_has_eight_rules_and_talk_that_does_not_state_them() -> None:
    for language in languages.LANGUAGES:
        stated = languages.data()[language]["rules"]
        talked = languages.conversation(language, stated, 500)
        places = [[at for at, one in enumerate(talked.messages) if rule in said(one)] for rule in stated]
        assert len(stated) == 8
        assert all(len(each) == 1 for each in places)


def test_twelve_pairs_and_twenty_four_changes_are_said_apart_or_together() -> None:
    beside = languages.data()["beside"]
    assert (len(beside["pairs"]), len(beside["changes"])) == (12, 24)
    first, second = beside["changes"][0]
    told = [said(message) for message in languages.conversation("en", [first, second], 300, 6).messages]
    places = [next(at for at, text in enumerate(told) if each in text) for each in (first, second)]
    assert places[1] - places[0] == 14


def test_a_rule_counts_only_while_it_stands_in_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "WINDOWS", 2)
    kept = asyncio.run(languages.rules_kept("en"))
    assert kept.of == 8
    assert len(kept.after) == 2
    assert kept.after[0] >= kept.after[-1]
