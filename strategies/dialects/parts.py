"""Leaves out pictures and documents: in place of each, one line of text says that it was there. Shortens long strings.

The parts of all protocols are known here, wherever a message has them: in its content, in a tool's result, or as an
item of its own. The output of a computer's call must be a screenshot, so one of a single pixel takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strategies.core.excerpt import without_middle
from strategies.core.messages import dump

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
"""A picture of one pixel, as PNG in base64."""
_SCREENSHOT, _MADE = "computer_screenshot", "image_generation_call"
_MEMBERS = ("content", "output")
_TEXTS = (*_MEMBERS, "text", "arguments", "input")


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of parts that may leave."""

    note: str  # what stands in the place of one
    text_of: Mapping[str, str]  # its types, with the type of a text part beside them
    mark: re.Pattern[bytes]

    def may_be_in(self, data: bytes) -> bool:
        """Whether a message may have such parts, by its bytes."""
        return self.mark.search(data) is not None


PICTURES = Kind(
    "[A picture was left out here, because the request was too large for the server.]",
    {"image_url": "text", "image": "text", "input_image": "input_text"},
    re.compile(rb"image"),
)
DOCUMENTS = Kind(
    "[A document was left out here, because the request was too large for the server.]",
    {"file": "text", "document": "text", "input_file": "input_text"},
    re.compile(rb'"(?:document|(?:input_)?file)"'),
)


def parts(value: Mapping[str, Any], kind: Kind) -> Iterator[Mapping[str, Any]]:
    """The parts of a message that are of a kind, in the order in which they leave."""
    if _is_of(value, kind):
        yield value
        return
    for member in _MEMBERS:
        inner = value.get(member)
        for part in inner if isinstance(inner, list) else [inner]:
            if isinstance(part, Mapping):
                yield from parts(part, kind)


def without_parts(value: Mapping[str, Any], kind: Kind, most: int) -> tuple[Mapping[str, Any], int]:
    """A message without its first parts of a kind, at most `most` of them, and how many were left out."""
    if most <= 0:
        return value, 0
    if _is_of(value, kind):
        return _instead_of(value, kind), 1
    changed, left_out = dict(value), 0
    for member in _MEMBERS:
        inner = value.get(member)
        written = list[Any]()
        for part in inner if isinstance(inner, list) else [inner]:
            other, number = without_parts(part, kind, most - left_out) if isinstance(part, Mapping) else (part, 0)
            written.append(other)
            left_out += number
        if inner is not None:
            changed[member] = written if isinstance(inner, list) else written[0]
    return (changed, left_out) if left_out else (value, 0)


def data_of(document: Mapping[str, Any]) -> str:
    """The bytes of a document in base64; "" if they are elsewhere."""
    held = next((held for key in ("source", "file") if isinstance(held := document.get(key), Mapping)), document)
    data = held.get("data") or held.get("file_data")
    return data if isinstance(data, str) else ""


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


def _is_of(value: Mapping[str, Any], kind: Kind) -> bool:
    found, source = value.get("type"), value.get("source")
    if kind is DOCUMENTS:
        is_text = isinstance(source, Mapping) and source.get("type") in ("text", "content")
        return found in kind.text_of and not is_text
    if found == _SCREENSHOT:
        return bool(value.get("image_url")) and value["image_url"] != _instead_of(value, kind)["image_url"]
    return found in kind.text_of or (found == _MADE and bool(value.get("result")))


def _instead_of(part: Mapping[str, Any], kind: Kind) -> Mapping[str, Any]:
    found = part["type"]
    if found == _SCREENSHOT:
        return {"type": found, "image_url": f"data:image/png;base64,{PIXEL}"}
    if found == _MADE:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": kind.note}]}
    marker = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    return {"type": kind.text_of[found], "text": kind.note, **marker}
