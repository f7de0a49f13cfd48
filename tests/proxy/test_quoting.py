"""Quoted values are cut and have no control characters, and JSON of any shape is read without an exception."""

from proxy.quoting import not_this, printable, quoted
from proxy.values import count_at, json_or_none


def test_a_value_is_shown_in_quotes_and_cut() -> None:
    assert quoted("8k") == "'8k'"
    assert quoted(8192.5) == "'8192.5'"
    assert quoted(True) == "'true'"
    assert quoted(["a"]) == "'['a']'"
    assert quoted("x" * 1_000_000, 3) == "'xxx…'"
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert quoted(value) == "'[[[[[[[...]]]]]]]'"
    assert printable("a\r\nb\x1b[1m\u202e") == "a??b?[1m?"


def test_a_value_that_may_be_a_credential_is_not_shown() -> None:
    for value in ("redis://:hunter2@h", "hunter2@h", "sk-hunter2", "hunter2" * 10):
        assert not_this(value) == ""
    assert not_this("abc") == ", not 'abc'"


def test_json_of_any_form_is_read_and_other_text_is_none() -> None:
    given: list[tuple[str | bytes, object]] = [('{"a": 1}', {"a": 1}), (b"[2]", [2]), ("0", 0), ("null", None)]
    for text, value in given:
        assert json_or_none(text) == value
    broken: list[str | bytes] = ["", "{", "<html>", b"\xff\xfe\x00", "[" * 100_000]
    for each in broken:
        assert json_or_none(each) is None


def test_a_count_is_a_positive_integer_or_0() -> None:
    documents: list[object] = [None, [], "5", 5, {}, *({"n": each} for each in (0, -1, 1.0, True, "7", None))]
    for document in documents:
        assert count_at(document, "n") == 0
        assert count_at({"n": 7}, "n") == 7
