"""JSON as clients write it: its numbers may be of any length.

Python reads no whole number of more than 4,300 digits, for that takes quadratic time. Nobody computes with such a
number here: it is read as the text that it is, and the bytes that it came in are what is sent on.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def _whole(digits: str) -> int | str:
    most = sys.get_int_max_str_digits()
    return digits if most and len(digits) > most else int(digits)


_DECODE = json.JSONDecoder().raw_decode
_WITH_LONG_NUMBERS = json.JSONDecoder(parse_int=_whole)


def loads(text: str) -> Any:
    """The value of a JSON text; raises `ValueError` for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _WITH_LONG_NUMBERS.decode(text)


def decode(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and where it ends; raises `ValueError` where none does."""
    try:
        return _DECODE(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _WITH_LONG_NUMBERS.raw_decode(text, at)
