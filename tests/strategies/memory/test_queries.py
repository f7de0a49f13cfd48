"""Recall on queries in several languages, and the examples of the document."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from strategies.core.cards import MemoryCard
from strategies.memory.ranking import Index, card_entry
from tests.strategies.memory.building import index, places

MIN_RECALL = 0.9


@cache
def examples() -> dict[str, Any]:
    """A conversation in two languages with a little of others, and queries with the message that each should find."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("queries.json").read_text("utf-8"))
    return found


@cache
def memory() -> Index:
    return index([(role, text) for role, text in examples()["messages"]])


def test_the_set_has_sixty_queries_and_half_of_them_are_chinese() -> None:
    queries = [each["query"] for each in examples()["queries"]]

    assert len(set(queries)) >= 60
    assert sum(any("\u4e00" <= sign <= "\u9fff" for sign in query) for query in queries) >= 30


@pytest.mark.parametrize("chinese", [True, False])
def test_recall_at_five_is_at_least_nine_in_ten(chinese: bool) -> None:
    queries = [
        each for each in examples()["queries"] if any("\u4e00" <= sign <= "\u9fff" for sign in each["query"]) is chinese
    ]
    missed = [each["query"] for each in queries if each["finds"] not in places(memory().search(each["query"], 5))]

    assert len(missed) <= (1 - MIN_RECALL) * len(queries), missed


def test_the_documents_own_query_finds_its_card() -> None:
    cards = [
        MemoryCard("项目的 GPU 选型定为 A100", "decision", ("GPU", "硬件")),
        MemoryCard("上下文使用率超过 80% 时触发汇总", "fact"),
        MemoryCard("保留最近 4 条消息", "constraint"),
    ]
    found = Index(card_entry(card.id, card) for card in cards)

    assert found.search("GPU 选型", 3)[0].entry.text == cards[0].content
    assert found.search("什么时候触发汇总？", 3)[0].entry.text == cards[1].content
    assert found.search("最近消息保留几条", 3)[0].entry.text == cards[2].content
