"""What is read of replies of the Responses API, and the events of an item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces
from proxy.values import json_or_none, objects_at, word_at

ANSWER = re.compile(rb'"object"\s*:\s*"response"|"type"\s*:\s*"response\.(?!failed)[a-z_.]+"')
GREETINGS = ("response.created", "response.in_progress", "response.queued")
ENDINGS = ("response.completed", "response.incomplete", "response.failed")
"""The types of events that end a stream; each has the whole response."""


def text_of(items: Iterable[Mapping[str, Any]]) -> str:
    """The texts of the messages among some items, joined."""
    parts = (part for item in items if item.get("type") == "message" for part in objects_at(item, "content"))
    return "".join(word_at(part, "text") for part in parts)


def _text_of_event(document: Any) -> str:
    return word_at(document, "delta") if word_at(document, "type") == "response.output_text.delta" else ""


TEXT_PLACES = TextPlaces(b"delta", lambda document: text_of(objects_at(document, "output")), _text_of_event)


@dataclass(slots=True)
class ResponsesCapture(StreamCapture):
    """The last event of a stream has the whole response."""

    _response: object = None

    def _add(self, data: str) -> None:
        # Only the last event is parsed: the others say what it repeats.
        if any(ending in data for ending in ENDINGS):
            event = json_or_none(data)
            if word_at(event, "type") in ENDINGS:
                self._response = event.get("response")

    def items(self) -> Items:
        return items_in(self._response)

    @property
    def reply_id(self) -> str:
        return word_at(self._response, "id")


def items_in(response: object) -> Items:
    """The items of a response that has not failed."""
    return objects_at(response, "output") if word_at(response, "status") in ("completed", "incomplete") else ()


def item_events(item: Mapping[str, Any], index: int) -> Iterator[Json]:
    """The events of one item, without their numbers in the stream."""
    place = {"output_index": index}
    yield {"type": "response.output_item.added", **place, "item": item}
    if item.get("type") == "message":
        yield from _text_events(item, place)
    yield {"type": "response.output_item.done", **place, "item": item}


def _text_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[Json]:
    for number, part in enumerate(objects_at(item, "content")):
        at = {**place, "item_id": item.get("id"), "content_index": number}
        if not isinstance(part.get("text"), str):
            continue
        yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
