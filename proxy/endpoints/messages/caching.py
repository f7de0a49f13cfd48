"""Markers of the prompt cache: a request has at most four, and those for an hour stand before those for 5 minutes.

A client marks where its own history may be cached. In a view the markers of replaced messages are gone, so the head,
which stays the same from turn to turn, gets one, if the client marks anything and has one left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxy.endpoints.endpoint import Values
from proxy.values import json_or_none
from strategies.core.messages import dump

MAX_MARKERS = 4
_KEY = "cache_control"
_MARK = b'"cache_control"'


def with_marker(values: Values, elements: Sequence[bytes], place: int) -> bytes | None:
    """The element at a place, which ends the head, with a marker on its last block; None where it gets none."""
    automatic = values.get(_KEY)
    before = [*_markers(values.get("tools")), *_markers(values.get("system")), *_marked(elements[:place])]
    after = [*_marked(elements[place + 1 :]), *([automatic] if isinstance(automatic, Mapping) else ())]
    if not (before or after) or len(before) + len(after) >= MAX_MARKERS:
        return None
    return _with_marker(elements[place], before[-1] if before else after[0])


def _marked(elements: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for element in elements:
        if _MARK in element:
            message = json_or_none(element)
            yield from _markers(message.get("content") if isinstance(message, Mapping) else None)


def _markers(blocks: object) -> Iterator[Mapping[str, Any]]:
    """The markers of blocks, in order, those inside of results too."""
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, Mapping):
            yield from _markers(block.get("content"))
            if isinstance(marker := block.get(_KEY), Mapping):
                yield marker


def _with_marker(element: bytes, marker: Mapping[str, Any]) -> bytes | None:
    message = json_or_none(element)
    if not isinstance(message, dict) or _MARK in element:
        return None
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
    if not isinstance(blocks, list) or not blocks or not isinstance(blocks[-1], dict):
        return None
    message["content"] = [*blocks[:-1], {**blocks[-1], _KEY: marker}]
    return dump(message).encode("utf-8", "surrogatepass")
