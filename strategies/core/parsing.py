"""Parses JSON in which numbers may have any length.

Python refuses to parse an integer of more than 4,300 digits, because that takes quadratic time. We do not compute with
such numbers: they are read as text here, and the original bytes are what is sent on.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def _int_or_text(digits: str) -> int | str:
    most = sys.get_int_max_str_digits()
    return digits if most and len(digits) > most else int(digits)


_DECODE = json.JSONDecoder().raw_decode
_WITH_LONG_NUMBERS = json.JSONDecoder(parse_int=_int_or_text)


def loads(text: str) -> Any:
    """The value of a JSON text; raises `ValueError` for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _WITH_LONG_NUMBERS.decode(text)


def decode(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at index `at`, and the index where it ends; raises `ValueError` if there is none."""
    try:
        return _DECODE(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _WITH_LONG_NUMBERS.raw_decode(text, at)
