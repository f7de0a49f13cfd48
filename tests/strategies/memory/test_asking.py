"""Which user messages are worth a memory block, and whether what has left the view is what they ask about."""

import pytest

from strategies.core.messages import Role
from strategies.memory.asking import asked, worth_showing
from strategies.memory.ranking import Entry, Hit


@pytest.mark.parametrize(
    "text",
    [
        "Where does the key hang?",
        "what was the port again",
        "Remind me of the hotel's name.",
        "Hi. Which region hosts the database?",
        "I have read through all of it now, and it looks fine to me. Did we decide on a date before?",
        "生产数据库在哪个地区？",
        "我之前说过预算是多少",
    ],
)
def test_a_message_that_mainly_asks_is_searched_for(text: str) -> None:
    assert asked(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Thanks, that works.",
        "Add a test for the parser.",
        "What a day. I have been in the garden all morning, and the beds look wonderful. Isn't it nice?",
        "好的，谢谢。",
        "<system-reminder>What is the date?</system-reminder>Go on.",
        "Fix this:\n```\nwhat = ask('where is it?')\n```",
    ],
)
def test_a_message_that_only_goes_on_is_not(text: str) -> None:
    assert asked(text) == ""


def test_only_the_questions_are_searched_for() -> None:
    assert asked("The figs are ripe. Where did we say the ladder is?") == "Where did we say the ladder is?"


def hits(*scores: float) -> list[Hit]:
    return [Hit(Entry(str(at), Role.USER, "text", at), at, score) for at, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("question", "hidden", "visible", "pays"),
    [
        ("Where is it?", 2.0, 1.0, True),
        ("Where is it?", 1.7, 2.0, True),
        ("Where is it?", 1.5, 2.0, False),
        ("它在哪里？", 1.7, 2.0, False),
        ("它在哪里？", 3.1, 2.0, True),
    ],
)
def test_what_is_hidden_must_match_about_as_well(question: str, hidden: float, visible: float, pays: bool) -> None:
    found = sorted(hits(hidden, visible), key=lambda hit: -hit.score)
    shown = worth_showing(question, found, lambda hit: hit.entry.place == 0)
    assert [hit.score for hit in shown] == ([hidden] if pays else [])


def test_nothing_hidden_is_worth_nothing() -> None:
    assert worth_showing("Where is it?", hits(1.0), lambda _: False) == []
