"""Parsing: JSON with numbers of any length, tags in answers, and the normal form in which texts are compared.

An integer takes time that is quadratic in its digits, and Python holds up all threads meanwhile. We do not compute with
long ones: they are read as text here, and the original bytes are sent on.

No pattern gets more than `STEP` characters of a text at once, because `re` keeps the interpreter's lock, and so every
other request waiting, until it returns.

Tags in a model's answer, `<name>…</name>`, are found in one pass, however many are never closed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DIGITS = 400  # digits of an integer that is read as one
STEP = 256 * 1024
_MEETING = 4 * 1024  # characters in which two steps meet, so that a match which is no longer is whole in one of them
MAX_VALUES = 25_000
"""JSON values in a text within a message, such as the arguments of a call, above which it is not parsed."""

_DELIMITER = re.compile(r'["\[\]{},]')
_IN_STRING = re.compile(r'(?:[^"\\]{1,4096}+|\\.){0,256}+("?)', re.DOTALL)


def _int_or_text(digits: str) -> int | str:
    return digits if len(digits) > MAX_DIGITS else int(digits)


_DECODER = json.JSONDecoder(parse_int=_int_or_text)


def loads(text: str) -> Any:
    """The value of a JSON text; raises `ValueError` for anything else."""
    return _DECODER.decode(text)


def decode(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at index `at`, and the index where it ends; raises `ValueError` if there is none."""
    return _DECODER.raw_decode(text, at)


def delimiters(text: str, at: int = 0) -> Iterator[str]:
    """The delimiters outside of strings."""
    while at < len(text):
        if (found := _DELIMITER.search(text, at, at + STEP)) is None:
            at += STEP
            continue
        at = found.end()
        if found[0] != '"':
            yield found[0]
            continue
        while (part := _IN_STRING.match(text, at, at + STEP)) and part.end() > at:
            at = part.end()
            if part[1]:
                break


def has_many_values(text: str) -> bool:
    """Whether a JSON text may have more than `MAX_VALUES`, which take far more memory than their bytes."""
    if sum(map(text.count, "{[,")) <= MAX_VALUES:
        return False
    return any(n >= MAX_VALUES for n, _ in enumerate(each for each in delimiters(text) if each in "{[,"))


def in_steps(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """The matches of a pattern, as of `finditer`; of one longer than `_MEETING` only what is within a step."""
    at = 0
    while True:
        stop = at + STEP
        for match in pattern.finditer(text, at, stop):
            if match.end() > stop - _MEETING and stop < len(text) and match.start() > at:
                at = match.start()  # it may go on
                break
            yield match
            at = match.end()
        else:
            if stop >= len(text):
                return
            at = max(at, stop - _MEETING)


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


def last_tag_content(text: str, name: str) -> str | None:
    """The text inside the last pair of tags; None if there is no pair.

    Prose before the pair may name the tag: of several opening tags, the pair has the last one that begins a line.
    """
    *_, content = (None, *tag_contents(text, name))
    return content and re.split(rf"(?m)^[ \t]*<{name}>", content)[-1]


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
