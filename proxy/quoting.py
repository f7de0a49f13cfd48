"""Quotes in messages: what a user wrote, made safe to show.

A value may be a megabyte long or hold control characters that would forge a line of a log, so every message that
repeats one has it from here.
"""

from __future__ import annotations

import json
import re
import reprlib

QUOTED = 64
"""Characters of a value that are shown."""
_WORD = re.compile(r"[A-Za-z0-9._:/@+-]+")


def printable(text: str, most: int = QUOTED, instead: str = "?") -> str:
    """The first `most` characters of a text, with `instead` for each that cannot be printed and "…" for the rest."""
    shown = "".join(char if char.isprintable() else instead for char in text[:most])
    return shown + "…" if len(text) > most else shown


def one_line(text: str) -> str:
    """A whole text in one line, with a space for each character that cannot be printed."""
    return printable(text, len(text), " ")


def label(text: str, most: int = QUOTED) -> str:
    """A name as a line of the log has it: in single quotes, and as `printable`, if it may not pass for one word."""
    return text if len(text) <= most and _WORD.fullmatch(text) else quoted(text, most)


def quoted(value: object, most: int = QUOTED) -> str:
    """A value as `printable` has it, in single quotes; one that is no text as JSON has it, and a deep one in part."""
    return f"'{printable(_text(value), most)}'"


def not_this(value: object) -> str:
    """`, not 'VALUE'`; "" for a value that may be or hold a credential: an address, a key, a long text."""
    text = _text(value)
    may_be_secret = "://" in text or "@" in text or text.startswith("sk-") or len(text) > QUOTED
    return "" if may_be_secret else f", not {quoted(text)}"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) else reprlib.repr(value)


def redacted(url: str) -> str:
    """`url` without user, password and options. It does not parse the URL: a malformed one must not leak either."""
    scheme, separator, place = url.partition("://")
    if not separator:
        return "***"  # nothing tells what part of this is secret
    if scheme.lower() in {"sqlite", "memory"}:
        return url
    user, at, address = place.rpartition("@")
    address, options, _ = address.partition("?")
    return f"{scheme}://{'***@' if user or at else ''}{address}{'?***' if options else ''}"


def in_words(error: Exception) -> str:
    """What an error says, without Python's own form of an error of the system."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
