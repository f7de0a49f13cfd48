"""Parsing: JSON with numbers of any length, tags in answers, and the normal form in which texts are compared.

Python refuses to parse an integer of more than 4,300 digits, because that takes quadratic time. We do not compute with
such numbers: they are read as text here, and the original bytes are sent on.

Tags in a model's answer, `<name>…</name>`, are found in one pass, however many are never closed.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
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


def word(value: object) -> str:
    """The value if it is a text; else ""."""
    return value if isinstance(value, str) else ""


def objects_in(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


_THOUGHTS = re.compile(
    r"""  <(?:think(?:ing)?|thought|seed:think)>.*?</(?:think(?:ing)?|thought|seed:think)>
        | \[THINK\].*?\[/THINK\]
        | <(?:think(?:ing)?|thought|seed:think)>.*           # cut short in the middle of the thoughts
    """,
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
_UNOPENED = re.compile(
    r"(?:(?!<think|<summary).)*?(?:(?:\A|\n)[ \t]*</think(?:ing)?>|</think(?:ing)?>[ \t]*(?:\n|\Z))",
    re.DOTALL | re.IGNORECASE,
)
"""Thoughts whose opening tag a chat template has written. The closing tag begins or ends a line; else it is a word."""


def without_thoughts(text: str) -> str:
    """A model's text without the reasoning at its beginning."""
    text = text.lstrip()
    if not (thoughts := _THOUGHTS.match(text)):
        thoughts = _UNOPENED.match(text)
    while thoughts:
        text = text[thoughts.end() :].lstrip()
        thoughts = _THOUGHTS.match(text)
    return text


def tag_contents(text: str, name: str) -> Iterator[str]:
    """Yields the text inside each pair of tags, in order; an opening tag inside a pair is text."""
    for start, end in _pairs(text, name):
        yield text[start + len(name) + 2 : end - len(name) - 3]


def without_tags(text: str, name: str) -> str:
    parts, read_to = [], 0
    for start, end in _pairs(text, name):
        parts.append(text[read_to:start])
        read_to = end
    return "".join((*parts, text[read_to:]))


def _pairs(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Yields where each pair begins and ends, tags included."""
    opening, closing = f"<{name}>", f"</{name}>"
    end = 0
    while (start := text.find(opening, end)) >= 0:
        closed = text.find(closing, start + len(opening))
        if closed < 0:
            return
        end = closed + len(closing)
        yield start, end


_WORDS = re.compile(r"\w+")


def fold_characters(text: str) -> str:
    """Text without accents and with one form for full and half width. Case is kept: camelCase separates words."""
    if text.isascii():
        return text
    one_width = unicodedata.normalize("NFKC", text)
    bare = (char for char in unicodedata.normalize("NFD", one_width) if not "\u0300" <= char <= "\u036f")
    return unicodedata.normalize("NFC", "".join(bare))


def normalized(text: str) -> str:
    """The folded, lower-case words of a text, joined by spaces: two texts with the same words compare equal."""
    return " ".join(_WORDS.findall(fold_characters(text).casefold()))
