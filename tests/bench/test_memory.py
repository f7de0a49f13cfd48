from __future__ import annotations

from random import Random

import pytest

from bench.memory import Row, asked, chinese, document, english, markdown, measure, verdict
from strategies.core.messages import Role
from strategies.memory.passages import text_entries
from strategies.memory.ranking import Index


def test_generated_messages_are_the_same_every_time() -> None:
    for write in (english, chinese):
        assert write(Random(1), 20) == write(Random(1), 20)


@pytest.mark.parametrize(("language", "write"), [("English", english), ("Chinese", chinese)])
def test_a_query_finds_something(language: str, write: type) -> None:
    random = Random(3)
    said = [write(random, 12) for _ in range(40)]
    index = Index(entry for at, text in enumerate(said) for entry in text_entries(str(at), Role.USER, text, at))

    assert all(index.search(asked(random, language, said)) for _ in range(20))


def test_each_size_is_measured_in_both_languages() -> None:
    rows = measure(sizes=(10, 20), queries=3)

    assert [(row.language, row.messages) for row in rows] == [
        ("English", 10), ("English", 20), ("Chinese", 10), ("Chinese", 20),
    ]  # fmt: skip


def test_the_target_is_that_of_two_thousand_messages() -> None:
    assert verdict(Row("English", 2_000, 4.9, 9.0, 0.1)) == "met"
    assert verdict(Row("English", 2_000, 5.1, 9.0, 0.1)) == "missed"
    assert verdict(Row("English", 500, 9.0, 9.0, 0.1)) == "-"


def test_the_table_and_the_document_hold_the_same_figures() -> None:
    row = Row("English", 2_000, 2.24, 3.0, 0.08)

    assert markdown([row]).splitlines()[-1] == "| 2,000 | English | 2.2 | 3.0 | 0.08 | met |"
    assert document([row]) == [{"language": "English", "messages": 2_000, "search": 2.24, "slow": 3.0, "adding": 0.08}]
