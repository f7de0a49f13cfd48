"""Texts in one form, to be compared and searched."""

from __future__ import annotations

import re
import unicodedata

_WORDS = re.compile(r"\w+")


def fold(text: str) -> str:
    """One form for full and half width; accents are dropped, case stays for what humps separate."""
    if text.isascii():
        return text
    wide = unicodedata.normalize("NFKC", text)
    bare = (each for each in unicodedata.normalize("NFD", wide) if not "\u0300" <= each <= "\u036f")
    return unicodedata.normalize("NFC", "".join(bare))


def plain(text: str) -> str:
    """The words of a text in one form, without what separates them: by this two texts are compared."""
    return " ".join(_WORDS.findall(fold(text).casefold()))
