"""JSON from outside: nothing in it is believed to have a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_or_none(text: str | bytes) -> Any:
    """The value of JSON; None where it is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def count_at(document: Any, key: str) -> int:
    """The number of tokens at a key of an object; 0 where it is no whole number above 0, or the object is none."""
    # Nearly always a plain dict, which is told much sooner than that something is a mapping.
    found = document.get(key) if isinstance(document, (dict, Mapping)) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0
