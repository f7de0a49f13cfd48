"""JSON as clients write it, with numbers of any length."""

from __future__ import annotations

import sys

import pytest

from strategies.core.parsing import decode, loads

LONGEST = sys.get_int_max_str_digits()


def test_a_number_that_python_reads_is_a_number() -> None:
    assert loads("9" * LONGEST) == 10**LONGEST - 1


def test_a_number_that_python_does_not_read_is_its_text() -> None:
    digits = "9" * (LONGEST + 1)
    assert loads(f'{{"a": [{digits}, 1], "b": -{digits}}}') == {"a": [digits, 1], "b": "-" + digits}


def test_a_value_in_a_text_is_read_to_its_end() -> None:
    digits = "9" * (LONGEST + 1)
    assert decode(f"[{digits}]x", 0) == ([digits], LONGEST + 3)
    assert decode("x[1]", 1) == ([1], 4)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "9" * (LONGEST + 1) + "x", "nonsense"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="column"):
        loads(text)
