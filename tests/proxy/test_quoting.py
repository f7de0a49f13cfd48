"""Quoted values are cut, and have no control characters."""

from __future__ import annotations

import pytest

from proxy.quoting import not_this, printable, quoted


def test_a_short_value_is_shown_whole_in_quotes() -> None:
    assert quoted("8k") == "'8k'"
    assert quoted(8192.5) == "'8192.5'"
    assert quoted(True) == "'true'"
    assert quoted(["a"]) == "'['a']'"


def test_a_value_that_is_deeper_than_the_stack_is_shown_in_part() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert quoted(value) == "'[[[[[[[...]]]]]]]'"


def test_a_long_value_is_cut() -> None:
    assert quoted("x" * 1_000_000, 3) == "'xxx…'"


def test_characters_that_cannot_be_printed_are_question_marks() -> None:
    assert printable("a\r\nb\x1b[1m\u202e") == "a??b?[1m?"


@pytest.mark.parametrize("value", ["redis://:hunter2@h", "hunter2@h", "sk-hunter2", "hunter2" * 10])
def test_a_value_that_may_be_a_credential_is_not_shown(value: str) -> None:
    assert not_this(value) == ""


def test_any_other_value_is_shown() -> None:
    assert not_this("abc") == ", not 'abc'"
