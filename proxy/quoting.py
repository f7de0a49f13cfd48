"""Makes users' values safe to show in messages.

A value may be a megabyte long, or hold control characters that would forge a line of a log, so every message that
repeats a value uses these functions.
"""

from __future__ import annotations

import json
import re
import reprlib

CREDENTIALS = (
    "Authorization", "api-key", "x-api-key", "x-goog-api-key", "x-litellm-api-key", "x-portkey-api-key", "x-auth-token",
    "x-portkey-virtual-key", "helicone-auth", "cf-aig-authorization", "ocp-apim-subscription-key", "x-access-token",
)  # fmt: skip
"""The headers that vendors and gateways take as credentials, in the order in which they count, but for cookies."""
QUOTED = 64  # characters that are shown of a value
_WORD = re.compile(r"[A-Za-z0-9._:/@+-]+")


def printable(text: str, most: int = QUOTED, instead: str = "?") -> str:
    """The first `most` characters of a text, with `instead` for unprintable characters and "…" for the rest."""
    shown = "".join(char if char.isprintable() else instead for char in text[:most])
    return shown + "…" if len(text) > most else shown


def one_line(text: str) -> str:
    """A whole text in one line, with spaces for unprintable characters."""
    return printable(text, len(text), " ")


def label(text: str, most: int = QUOTED) -> str:
    """A name for a line of the log; `quoted` unless it is one plain word."""
    return text if len(text) <= most and _WORD.fullmatch(text) else quoted(text, most)


def quoted(value: object, most: int = QUOTED) -> str:
    """A value in single quotes, made `printable`; a value that is no text is shown as JSON, and a deep one in part."""
    return f"'{printable(_text(value), most)}'"


def not_this(value: object) -> str:
    """`, not 'VALUE'`; "" if the value may contain a credential: an address, a key, a long text."""
    text = _text(value)
    may_be_secret = "://" in text or "@" in text or text.startswith("sk-") or len(text) > QUOTED
    return "" if may_be_secret else f", not {quoted(text)}"


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) else reprlib.repr(value)


def redacted(url: str) -> str:
    """`url` without user, password and options. It is not parsed, because a malformed URL must not leak them either."""
    scheme, separator, place = url.partition("://")
    if not separator:
        return "***"  # any part of this may be secret
    if scheme.lower() in {"sqlite", "memory"}:
        return url
    user, at, address = place.rpartition("@")
    address, options, _ = address.partition("?")
    return f"{scheme}://{'***@' if user or at else ''}{address}{'?***' if options else ''}"


def in_words(error: Exception) -> str:
    """The message of an error, without Python's form for errors of the system."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
