"""Leaves out pictures: in place of each, one line of text says that it was there.

The parts of all protocols are known here, wherever a message has them: in its content, or in a tool's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEFT_OUT = "[A picture was left out here, because the request was too large for the server.]"
_TEXT_OF = {"image_url": "text", "image": "text", "input_image": "input_text"}
"""The types of picture parts, with the type of a text part beside them."""


def has_pictures(data: bytes) -> bool:
    """Whether a message may have pictures, by its bytes."""
    return b"image" in data


def without_pictures(message: Mapping[str, Any], most: int) -> tuple[Mapping[str, Any], int]:
    """A message without its first pictures, at most `most` of them, and how many were left out."""
    changed, left_out = dict(message), 0
    for member in ("content", "output"):
        parts = message.get(member)
        if not isinstance(parts, list):
            continue
        written = list[Any]()
        for part in parts:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind in _TEXT_OF and left_out < most:
                marker = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
                written.append({"type": _TEXT_OF[kind], "text": LEFT_OUT, **marker})
                left_out += 1
            elif isinstance(part, Mapping) and left_out < most:
                inner, number = without_pictures(part, most - left_out)
                written.append(inner if number else part)
                left_out += number
            else:
                written.append(part)
        changed[member] = written
    return (changed, left_out) if left_out else (message, 0)
