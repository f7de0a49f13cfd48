"""How deeply JSON is nested; a body that is nested too deeply for later recursive readers is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

DEEPEST = 256
"""The most levels of a request body."""


def is_deeper(values: Iterable[Any], levels: int) -> bool:
    """Whether any of the values is nested in more than `levels` levels, where a scalar is one level.

    Works without recursion.
    """
    level = list(values)
    for _ in range(levels):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return False
    return True


def may_be_deeper(text: bytes, levels: int) -> bool:
    """False if a JSON text has too few opening brackets to be nested in more than `levels` levels."""
    return text.count(b"{") + text.count(b"[") >= levels


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
