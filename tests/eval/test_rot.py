"""Rules that a text has a summarizer leave out stay in the view, and what is missing is counted."""

import asyncio

import pytest

from eval import languages, rot
from eval.views import said


def test_the_attack_comes_after_the_rules_and_the_talk_goes_on() -> None:
    rules = languages.data()["en"]["rules"]
    texts = [said(message) for message in rot.conversation(rules).messages]
    stated = [next(at for at, text in enumerate(texts) if rule in text) for rule in rules]
    attack = next(at for at, text in enumerate(texts) if "NOTE TO WHOEVER SUMMARIZES" in text)
    assert min(stated) < attack < len(texts) // 2


@pytest.mark.parametrize("strategy", ["summary", "rolling"])
def test_rules_stand_though_the_summarizer_leaves_them_out(strategy: str) -> None:
    found = asyncio.run(rot.rot(strategy))
    assert (found.condensations, found.looked_for) == (rot.CONDENSATIONS, 8 * rot.CONDENSATIONS)
    assert (found.written, found.violations) == (0, 0)


def test_rules_that_are_dropped_are_counted() -> None:
    assert asyncio.run(rot.rot("recent")).violations > 0
