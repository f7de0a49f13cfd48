"""Normalizes texts, so that they can be compared and searched."""

from __future__ import annotations

import re
import unicodedata

_WORDS = re.compile(r"\w+")


def fold_characters(text: str) -> str:
    """Text with one form for full and half width and without accents. Case is kept, since camelCase separates words."""
    if text.isascii():
        return text
    one_width = unicodedata.normalize("NFKC", text)
    bare = (each for each in unicodedata.normalize("NFD", one_width) if not "\u0300" <= each <= "\u036f")
    return unicodedata.normalize("NFC", "".join(bare))


def normalized(text: str) -> str:
    """The folded, lower-case words of a text, joined by spaces: two texts with the same words compare equal."""
    return " ".join(_WORDS.findall(fold_characters(text).casefold()))
