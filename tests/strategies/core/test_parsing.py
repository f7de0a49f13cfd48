"""JSON as clients write it, with numbers of any length."""

import pytest

from strategies.core.parsing import MAX_DIGITS, decode, loads

LONGEST = MAX_DIGITS


def test_a_number_that_is_not_long_is_a_number() -> None:
    assert loads("9" * LONGEST) == 10**LONGEST - 1


def test_a_long_number_is_its_text() -> None:
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
