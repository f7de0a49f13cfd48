"""Leaves out pictures: in place of each, one line of text says that it was there.

The parts of all protocols are known here, wherever a message has them: in its content, in a tool's result, or as an
item of its own. The output of a computer's call must be a screenshot, so one of a single pixel takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

LEFT_OUT = "[A picture was left out here, because the request was too large for the server.]"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
"""A picture of one pixel, as PNG in base64."""
_TEXT_OF = {"image_url": "text", "image": "text", "input_image": "input_text"}
"""The types of picture parts, with the type of a text part beside them."""
_SCREENSHOT, _MADE = "computer_screenshot", "image_generation_call"
_MEMBERS = ("content", "output")


def has_pictures(data: bytes) -> bool:
    """Whether a message may have pictures, by its bytes."""
    return b"image" in data


def pictures(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The pictures of a message, in the order in which they leave."""
    if _is_picture(value):
        yield value
        return
    for member in _MEMBERS:
        parts = value.get(member)
        for part in parts if isinstance(parts, list) else [parts]:
            if isinstance(part, Mapping):
                yield from pictures(part)


def without_pictures(value: Mapping[str, Any], most: int) -> tuple[Mapping[str, Any], int]:
    """A message without its first pictures, at most `most` of them, and how many were left out."""
    if most <= 0:
        return value, 0
    if _is_picture(value):
        return _instead_of(value), 1
    changed, left_out = dict(value), 0
    for member in _MEMBERS:
        parts = value.get(member)
        written = list[Any]()
        for part in parts if isinstance(parts, list) else [parts]:
            inner, number = without_pictures(part, most - left_out) if isinstance(part, Mapping) else (part, 0)
            written.append(inner)
            left_out += number
        if parts is not None:
            changed[member] = written if isinstance(parts, list) else written[0]
    return (changed, left_out) if left_out else (value, 0)


def _is_picture(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    return kind in _TEXT_OF or bool(
        (kind == _SCREENSHOT and value.get("image_url")) or (kind == _MADE and value.get("result"))
    )


def _instead_of(picture: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = picture["type"]
    if kind == _SCREENSHOT:
        return {"type": kind, "image_url": f"data:image/png;base64,{PIXEL}"}
    if kind == _MADE:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": LEFT_OUT}]}
    marker = {"cache_control": picture["cache_control"]} if "cache_control" in picture else {}
    return {"type": _TEXT_OF[kind], "text": LEFT_OUT, **marker}
