"""JSON from outside may have any shape and is read without an exception."""

from __future__ import annotations

import pytest

from proxy.values import count_at, json_or_none


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), (b"[2]", [2]), ("0", 0), ("null", None)])
def test_json_is_read_from_text_and_from_bytes(text: str | bytes, value: object) -> None:
    assert json_or_none(text) == value


@pytest.mark.parametrize("text", ["", "{", "<html>", b"\xff\xfe\x00", "[" * 100_000])
def test_invalid_json_is_none(text: str | bytes) -> None:
    assert json_or_none(text) is None


@pytest.mark.parametrize("document", [None, [], "5", 5, {}, *({"n": each} for each in (0, -1, 1.0, True, "7", None))])
def test_a_count_is_a_positive_integer_or_0(document: object) -> None:
    assert count_at(document, "n") == 0
    assert count_at({"n": 7}, "n") == 7
