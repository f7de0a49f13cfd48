"""How deeply a parsed JSON value is nested: what is too deep for the recursion of any later reader is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DEEPEST = 256
"""Levels that a request body may have."""


def is_deeper(values: Iterable[Any], levels: int) -> bool:
    """Whether something among `values` is nested in more than `levels` levels, scalars counted; not recursive."""
    level = list(values)
    for _ in range(levels):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return False
    return True


def may_be_deeper(text: bytes, levels: int) -> bool:
    """False where JSON text has too few brackets to be nested in more than `levels` levels."""
    return text.count(b"{") + text.count(b"[") >= levels


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
