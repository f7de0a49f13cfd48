"""Exact names and numbers are found by their form, and ranked by how often they were said."""

import pytest

from strategies.core.ledger import MAX_CHARACTERS, MAX_OF_ONE, Fact, find_facts, rank_facts


@pytest.mark.parametrize(
    "fact",
    [
        "src/app.py", "src/app.py:12", "/etc/nginx/conf.d", "./run.sh", "C:\\data\\x.txt", "https://x.org/a?b=1",
        "ann@x.org", "3fa9c1d7e2", "0f8fad5b-d9cb-469f-a165-70867728950e", "ORD-4711", "web-01", "#4711", "max_tokens",
        "parseHeader", "HttpClient", "MAX_TOKENS", "192.168.0.1:80", "v1.2.3", "2024-05-01", "250ms", "12%", "$4.50",
        "30 MB", "30元", "99887766", "TypeError: bad operand", "错误：文件不存在",
    ],
)  # fmt: skip
def test_a_name_or_a_number_is_found_word_for_word(fact: str) -> None:
    assert fact in list(find_facts(f"We saw {fact}"))
    assert fact in list(find_facts(f"我们看到 {fact}\n好"))


def test_words_and_bare_numbers_are_no_facts() -> None:
    assert list(find_facts("He/she and/or I saw 1/2 of 3 things, well-known, USA, 中文。 OK!")) == []


def test_what_was_said_most_often_comes_first_and_of_equals_the_last() -> None:
    facts = rank_facts([], ["A-1 B-2 C-3", "B-2 D-4", "E-5"])
    assert facts == [Fact("B-2", 2), Fact("E-5"), Fact("D-4"), Fact("C-3"), Fact("A-1")]


def test_earlier_facts_keep_their_count_and_are_older_than_new_ones() -> None:
    facts = rank_facts([Fact("A-1", 3), Fact("B-2"), Fact("C-3")], ["D-4 C-3"])
    assert facts == [Fact("A-1", 3), Fact("C-3", 2), Fact("D-4"), Fact("B-2")]


def test_a_log_that_repeats_itself_counts_a_few_times_only() -> None:
    assert rank_facts([], ["A-1 " * 500]) == [Fact("A-1", MAX_OF_ONE)]


def test_of_a_long_text_both_ends_are_looked_at() -> None:
    text = f"A-1 {'x ' * MAX_CHARACTERS} B-2 {'x ' * MAX_CHARACTERS} C-3"
    assert list(find_facts(text)) == ["A-1", "C-3"]
