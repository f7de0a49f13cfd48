"""JSON values, read without relying on their shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MOST_COUNTED, MOST_PER_BYTE, MOST_HIDDEN = 2**31, 10, 2**20
"""No request has more tokens or parts than the first: a larger number is a mistake, and counts as none.

More than so many for each byte of a body, and those that a server may add, are not that body's: they teach nothing.
"""


def json_or_none(text: str | bytes) -> Any:
    """The value of a JSON text; None if it is not valid JSON or too deeply nested to be parsed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def word_at(document: Any, key: str) -> str:
    """The text at a key of an object; "" if it is anything else, or `document` is not an object."""
    value = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return value if isinstance(value, str) else ""


def count_at(document: Any, key: str) -> int:
    """The positive integer at a key of an object; 0 if it is anything else or absurd, or `document` is no object."""
    # Nearly always a plain dict, which is checked much faster than a Mapping.
    value = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_COUNTED else 0


def object_at(document: Any, key: str) -> Mapping[str, Any]:
    """The object at a key of an object; empty if it is anything else, or `document` is not an object."""
    value = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return value if isinstance(value, (dict, Mapping)) else {}


def list_at(document: Any, key: str) -> list[Any]:
    """The array at a key of an object; empty if it is anything else, or `document` is not an object."""
    value = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return value if isinstance(value, list) else []


def objects_at(document: Any, key: str) -> list[Mapping[str, Any]]:
    """The objects in the array at a key of an object, without what is none."""
    return [value for value in list_at(document, key) if isinstance(value, Mapping)]
