from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.core.cards import MemoryCard
from strategies.core.messages import Role
from strategies.memory.merging import merge_cards, settled_cards

CARDS = st.lists(
    st.builds(
        MemoryCard,
        st.sampled_from(["The port is 8080", "The port is 9090", "Use tabs", "Do not use tabs", "数据库是 MySQL"]),
        st.sampled_from(["fact", "decision"]),
        role=st.sampled_from([Role.USER, Role.TOOL]),
    ),
    max_size=12,
)


def holding(*contents: str, kind: str = "fact") -> list[str]:
    """What holds when cards are told one after the other."""
    cards: list[MemoryCard] = []
    for nth, content in enumerate(contents):
        cards = merge_cards(cards, [MemoryCard(content, kind, condensation=f"c{nth}")])
    return [card.content for card in cards if card.holds]


@pytest.mark.parametrize(
    "again",
    [
        "Use Postgres for the orders service.",
        "use postgres for the orders service",
        "Use Postgres for the order service",
    ],
)
def test_what_says_the_same_is_told_once(again: str) -> None:
    assert holding("Use Postgres for the orders service.", again) == ["Use Postgres for the orders service."]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("The port is 8080", "The port is 9090"),
        ("The staging database is MySQL", "The staging database is Postgres"),
        ("timeout: 30 s", "timeout: 45 s"),
        ("数据库是 MySQL", "数据库是 PostgreSQL"),
        ("接口超时时间设为30秒", "接口超时时间设为60秒"),
        ("Use tabs in all Python files", "Do not use tabs in all Python files"),
        ("Keep at most 5 backups of each table", "Keep at most 7 backups of each table"),
    ],
)
def test_the_later_of_two_that_contradict_each_other_holds(earlier: str, later: str) -> None:
    assert holding(earlier, later) == [later]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The user is a nurse", "The user is allergic to nuts"),
        ("Use Redis for sessions", "Use Postgres for orders"),
        ("用户是老师", "用户是杭州人"),
        ("The port is 8080", "The host is db.example"),
        ("Ann likes tea", "Bob likes coffee"),
        ("INV-2024-0917 was paid in full by Ann", "INV-2024-0918 was paid in full by Ann"),
        ("Invoice 917 was paid", "Invoice 918 was paid"),
    ],
)
def test_what_can_hold_at_once_does(one: str, other: str) -> None:
    assert holding(one, other) == [one, other]


def test_a_superseded_card_stays_and_names_what_holds_instead() -> None:
    old, new = MemoryCard("The port is 8080"), MemoryCard("The port is 9090")

    first, second = merge_cards([old], [new])

    assert (first.content, first.superseded_by, second) == ("The port is 8080", second.id, new)


def test_what_was_superseded_can_be_told_again() -> None:
    assert holding("The port is 8080", "The port is 9090", "The port is 8080") == ["The port is 8080"]


def test_cards_of_different_types_do_not_supersede_each_other() -> None:
    cards = merge_cards([MemoryCard("The port is 8080", "constraint")], [MemoryCard("The port is 9090", "fact")])

    assert all(card.holds for card in cards)


def test_what_a_tool_said_supersedes_only_what_a_tool_said() -> None:
    users, tools = MemoryCard("The port is 8080"), MemoryCard("The port is 9090", role=Role.TOOL)

    assert all(card.holds for card in merge_cards([users], [tools]))
    assert [card.holds for card in merge_cards([tools], [users])] == [False, True]


def test_the_users_own_words_are_kept_beside_the_same_from_a_tool() -> None:
    tools, users = MemoryCard("Use tabs", role=Role.TOOL), MemoryCard("Use tabs")

    assert merge_cards([tools], [users]) == [tools, users]
    assert merge_cards([users], [tools]) == [users]


@settings(deadline=None)
@given(CARDS, st.integers(0, 12))
def test_cards_that_come_in_pieces_are_merged_as_those_that_come_at_once(cards: list[MemoryCard], cut: int) -> None:
    assert merge_cards(merge_cards([], cards[:cut]), cards[cut:]) == merge_cards([], cards)


@settings(deadline=None)
@given(CARDS)
def test_cards_that_hold_are_not_the_same_twice(cards: list[MemoryCard]) -> None:
    found = [(card.content, card.role) for card in merge_cards([], cards) if card.holds]

    assert len(found) == len(set(found))


@given(CARDS)
def test_settled_cards_are_those_that_merge(cards: list[MemoryCard]) -> None:
    assert list(settled_cards(tuple(cards))) == merge_cards((), cards)


def test_of_many_cards_each_is_compared_with_those_that_it_may_be_like() -> None:
    """As when each is compared with every other one: nothing that says the same, or the contrary, is missed."""
    names = [f"topic{chr(97 + number % 26)}{number * 7_919 % 1_000}" for number in range(300)]
    cards = [MemoryCard(f"{name} was told of in message {at}.", condensation=f"c{at}") for at, name in enumerate(names)]
    again = [MemoryCard(card.content.upper(), condensation="again") for card in cards]
    assert merge_cards((), [*cards, *again]) == cards
