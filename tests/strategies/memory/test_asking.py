"""What is worth a memory block: what a message names, and whether what has left the view says more of it."""

import pytest

from strategies.core.messages import Role
from strategies.memory.asking import asks, users_own, worth_showing
from strategies.memory.ranking import Entry, Hit
from tests.strategies.memory.building import index, places


@pytest.mark.parametrize(
    "text",
    [
        "Where does the key hang?",
        "Hi. Which region hosts the database?",
        "生产数据库在哪个地区？",
        "أين المفتاح؟",
        "Où est la clé ?",
    ],
)
def test_a_message_asks_by_its_question_marks(text: str) -> None:
    assert asks(text)


@pytest.mark.parametrize(
    "text",
    [
        "Thanks, that works.",
        "Add a test for the parser.",
        "What a day. I have been in the garden all morning, and the beds look wonderful. Isn't it nice?",
        "告诉我预算。",
    ],
)
def test_an_order_or_talk_does_not_ask(text: str) -> None:
    assert not asks(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("<system-reminder>What is the date?</system-reminder>Go on.", "Go on."),
        ("Fix this:\n```\nwhat = ask('where is it?')\n```", "Fix this:"),
    ],
)
def test_a_clients_blocks_and_code_name_nothing(text: str, words: str) -> None:
    assert users_own(text) == words


def hits(*scores: float) -> list[Hit]:
    return [Hit(Entry(str(at), Role.USER, "text", at), at, score) for at, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("question", "hidden", "visible", "pays"),
    [
        ("Where is it?", 2.0, 1.0, True),
        ("Where is it?", 2.0, 2.0, True),
        ("Where is it?", 1.9, 2.0, False),
        ("它在哪里？", 2.9, 2.0, False),
        ("它在哪里？", 3.0, 2.0, True),
    ],
)
def test_what_is_hidden_must_match_as_well(question: str, hidden: float, visible: float, pays: bool) -> None:
    found = sorted(hits(hidden, visible), key=lambda hit: -hit.score)
    shown = worth_showing(question, found, lambda hit: hit.entry.place == 0)
    assert [hit.score for hit in shown] == ([hidden] if pays else [])


def test_nothing_hidden_is_worth_nothing() -> None:
    assert worth_showing("Where is it?", hits(1.0), lambda _: False) == []


@pytest.mark.parametrize(
    ("hidden", "visible", "is_worth_it"),
    [
        ({"port": 0.8}, {}, True),
        ({"port": 0.8, "set": 0.3}, {"set": 0.3}, True),
        ({"port": 0.8}, {"port": 0.8}, False),
        ({"set": 0.2}, {}, False),
        ({}, {"port": 0.8}, False),
    ],
)
def test_an_order_must_name_something_rare_that_only_hidden_messages_have(
    hidden: dict[str, float], visible: dict[str, float], is_worth_it: bool
) -> None:
    told, seen = Hit(Entry("", Role.USER, "", 1), 1, 2.0, hidden), Hit(Entry("", Role.USER, "", 9), 9, 1.0, visible)
    found = worth_showing("Set the port.", [told, seen], lambda hit: hit is told)
    assert found == ([told] if is_worth_it else [])


def test_a_line_of_a_summary_that_says_more_leaves_a_passage_out() -> None:
    told = Hit(Entry("", Role.USER, "", 1), 1, 2.0, {"cod": 0.5, "shed": 0.6})
    question = "What is the code of the boat shed?"
    assert worth_showing(question, [told], lambda _: True, ["Goal: paint.\nThe boat shed's code is 31."]) == []
    assert worth_showing(question, [told], lambda _: True, ["Goal: paint.\nThe shed's code is 31."]) == [told]


NAMES = [first + rest for first in "MNLRSTVD" for rest in ("iam", "ora", "ana", "une", "ella")]
ENGLISH = (
    "Please note: the ticket number of {name} is {number}. It is about the printer.",
    "Noted. The ticket number of {name} is {number}.",
    "The menu is slow on floor {number}.",
    "Then clear its cache on floor {number}.",
    "What is the ticket number of Liam?",
)
CHINESE = (
    "请注意：{name}的工单号是{number}。这是关于打印机的。",
    "已记下。{name}的工单号是{number}。",
    "{number}楼的菜单很慢。",
    "那就清理{number}楼的缓存。",
    "Liam的工单号是多少？",
)
LIAM = 6 * NAMES.index("Liam")
"""The place of the message about Liam; the answer to it is the next one."""


def worth_telling(language: tuple[str, ...], *visible: int) -> list[int]:
    """What a block may show of forty tickets with talk between them; the view has the last sixteen and these places."""
    *told, question = language
    each = (*told, *told[2:])
    said = [text.format(name=name, number=20_000 + 977 * at) for at, name in enumerate(NAMES) for text in each]
    in_view = {*range(6 * 24, len(said)), *visible}
    hits = index(said).search(question)
    return sorted(places(worth_showing(question, hits, lambda hit: hit.entry.place not in in_view)))


@pytest.mark.parametrize("language", [ENGLISH, CHINESE])
def test_other_peoples_facts_are_not_put_beside_the_one_that_the_view_shows(language: tuple[str, ...]) -> None:
    assert worth_telling(language, LIAM, LIAM + 1) == []
    assert LIAM + 1 in worth_telling(language)
    others = {place for place in range(6 * len(NAMES)) if place % 6 < 2} - {LIAM, LIAM + 1}
    for visible in (LIAM, LIAM + 1):
        assert others.isdisjoint(worth_telling(language, visible))


def test_the_next_persons_fact_is_left_out() -> None:
    talk = ["The export should keep the order of its columns.", "I have added it to the list for the team."] * 8
    said = [
        *talk,
        "Please note: the ticket number of Farid is 45314. It is about the backup job, which fails on a full disk.",
        "Noted. The ticket number of Farid is 45314.",
        "Please note: the ticket number of Greta is 71964. It is about the search box.",
        "Noted. The ticket number of Greta is 71964.",
        *talk,
    ]
    question = "What is the ticket number of Farid?"
    found = index(said).search(question)
    assert places(found)[:2] == [17, 18]
    assert {16, 17} <= {*places(worth_showing(question, found, lambda _: True))}.difference((18, 19))
    assert not {18, 19}.intersection(places(worth_showing(question, found, lambda _: True)))


def test_an_answer_belongs_to_the_question_beside_it() -> None:
    question, answer, shown = (
        Hit(Entry("", Role.USER, "", at), at, score) for at, score in ((4, 2.0), (5, 0.4), (20, 1.9))
    )

    assert worth_showing("Where is it?", [question, shown, answer], lambda hit: hit is not shown) == [question, answer]
