"""Leaves out pictures and documents: in place of each, one line of text says that it was there. Shortens long strings.

The parts of all protocols are known here, wherever a message has them: in its content, in a tool's result, or as an
item of its own. The output of a computer's call must be a screenshot, so one of a single pixel takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from strategies.core.excerpt import without_middle
from strategies.core.messages import dump

Part = Mapping[str, Any]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
"""A picture of one pixel, as PNG in base64."""
_BLANK = f"data:image/png;base64,{PIXEL}"
PICTURES = {"image_url": "text", "image": "text", "input_image": "input_text"}
DOCUMENTS = {"file": "text", "document": "text", "input_file": "input_text"}
"""The kinds of parts that may leave: their types, with the type of a text part beside them."""
_SCREENSHOT, _MADE = "computer_screenshot", "image_generation_call"
_MEMBERS = ("content", "output")
_TEXTS = (*_MEMBERS, "text", "arguments", "input")
_MARKS = re.compile(rb'image|"(?:document|(?:input_)?file)"')


def has_parts(data: bytes) -> bool:
    """Whether a message may have parts that may leave, by its bytes."""
    return _MARKS.search(data) is not None


def without_parts(value: Part, kind: Mapping[str, str], most: int) -> tuple[Part, list[Part]]:
    """A message without its first parts of a kind, at most `most` of them, and those that were left out."""
    if most <= 0:
        return value, []
    if _is_of(value, kind):
        return _instead_of(value, kind), [value]
    changed, left_out = dict(value), list[Part]()
    for member in _MEMBERS:
        inner = value.get(member)
        written = list[Any]()
        for part in inner if isinstance(inner, list) else [inner]:
            other, more = without_parts(part, kind, most - len(left_out)) if isinstance(part, Mapping) else (part, [])
            written.append(other)
            left_out += more
        if inner is not None:
            changed[member] = written if isinstance(inner, list) else written[0]
    return (changed, left_out) if left_out else (value, [])


def shortened(value: Any, most: int, at: str = "") -> Any:
    """A message whose texts have at most so many characters; arguments stay an object."""
    match value:
        case Mapping():
            return {key: shortened(inner, most, key) for key, inner in value.items()}
        case list():
            return [shortened(inner, most) for inner in value]
        case str() if at in _TEXTS and len(value) > most:
            return dump({at: without_middle(value, most // 3)}) if at == "arguments" else without_middle(value, most)
    return value


def note_of(kind: Mapping[str, str]) -> str:
    """What stands in the place of a part."""
    what = "document" if kind is DOCUMENTS else "picture"
    return f"[A {what} was left out here, because the request was too large for the server.]"


def _is_of(value: Part, kind: Mapping[str, str]) -> bool:
    found, source = value.get("type"), value.get("source")
    if kind is DOCUMENTS:
        return found in kind and not (isinstance(source, Mapping) and source.get("type") in ("text", "content"))
    is_shown = found == _SCREENSHOT and value.get("image_url") not in (None, "", _BLANK)
    return found in kind or is_shown or bool(found == _MADE and value.get("result"))


def _instead_of(part: Part, kind: Mapping[str, str]) -> Part:
    found, note = part["type"], note_of(kind)
    if found == _SCREENSHOT:
        return {"type": found, "image_url": _BLANK}
    if found == _MADE:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": note}]}
    marker = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    return {"type": kind[found], "text": note, **marker}
