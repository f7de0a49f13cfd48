"""Replies of the Responses API: what is read of them, and what the proxy itself says in their form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces, named_event, objects_in
from proxy.errors import ProxyError
from proxy.values import json_or_none, word_at

ANSWER = re.compile(rb'"object"\s*:\s*"response"|"type"\s*:\s*"response\.(?!failed)[a-z_.]+"')
ENDINGS = ("response.completed", "response.incomplete", "response.failed")
"""The types of events that end a stream; each has the whole response."""
_GREETINGS = ("response.created", "response.in_progress", "response.queued")
_LAST = re.compile(
    rb'^(?:event: ?|data: ?\{\s*"type"\s*:\s*")response\.(?:completed|incomplete|failed)\b', re.MULTILINE
)
_MARK = 64
"""Bytes before a chunk in which the last event may have begun."""
_SEQUENCE = re.compile(rb'"sequence_number": ?(\d+)')


# -- events ------------------------------------------------------------------------------------------------------


def is_greeting(event: object) -> bool:
    """Whether an event says only that the response has begun."""
    return word_at(event, "type") in _GREETINGS


def last_event_at(chunk: bytes, sent: bytes) -> int:
    """The index in a chunk at which the last event of the stream begins; -1 for nowhere.

    A text may contain these bytes, but not at the start of a line, because JSON has no bare line ends inside.
    """
    before = sent[-_MARK:]
    joined = before + chunk
    found = _LAST.search(joined)
    if found is None or (found.start() == 0 and len(before) == _MARK):
        return -1
    return max(found.start() - len(before), 0)


# -- the text ----------------------------------------------------------------------------------------------------


def text_of(items: Iterable[Mapping[str, Any]]) -> str:
    """The texts of the messages among some items, joined."""
    parts = (part for item in items if item.get("type") == "message" for part in objects_in(item.get("content")))
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def output_of(response: object) -> Items:
    """The items of a response."""
    return objects_in(response.get("output")) if isinstance(response, Mapping) else []


def _text_of_event(document: Any) -> str | None:
    if word_at(document, "type") == "response.output_text.delta":
        return word_at(document, "delta")
    return ""


TEXT_PLACES = TextPlaces(b"delta", lambda document: text_of(output_of(document)), _text_of_event)


# -- the items ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ResponsesCapture(StreamCapture):
    """The last event of a stream has the whole response."""

    _response: object = None

    def feed(self, chunk: bytes) -> None:
        for data in self._events.feed(chunk):
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
    return output_of(response) if word_at(response, "status") in ("completed", "incomplete") else ()


# -- what the proxy says -----------------------------------------------------------------------------------------


def error_event(error: ProxyError, sent: bytes = b"") -> bytes:
    """An error as an event in the middle of a stream, whose last bytes were `sent`.

    SDKs raise an event that has an `error`; the other members are those of the API's own event.
    """
    written = json_or_none(error.to_json())
    shown = written.get("error") if isinstance(written, Mapping) else None
    told = shown if isinstance(shown, Mapping) else {"message": error.message, "code": error.code, "param": error.param}
    members = {name: told.get(name) for name in ("code", "message", "param")}
    return named_event({"type": "error", **members, "error": told, "sequence_number": _next_number(sent)})


def _next_number(sent: bytes) -> int:
    numbers = _SEQUENCE.findall(sent)
    return int(numbers[-1]) + 1 if numbers else 0


def comment(_model: str = "", _now: float = 0.0) -> bytes:
    """A sign of life: every event has a number and a meaning, so only a comment says nothing."""
    return b": keep-alive\n\n"


def as_events(data: bytes, *, is_success: bool) -> bytes | None:
    """A response as the events of its stream, an error as an event; None if the data is neither."""
    document = json_or_none(data)
    if not isinstance(document, Mapping):
        return None
    status = word_at(document, "status")
    if isinstance(document.get("error"), Mapping) and document.get("object") != "response":
        told = document["error"]
        members = {name: told.get(name) for name in ("code", "message", "param")}
        return named_event({"type": "error", **members, "error": told, "sequence_number": 0})
    if not is_success or f"response.{status}" not in ENDINGS:
        return None
    events = enumerate(_events_of(document, status))
    return b"".join(named_event({**event, "sequence_number": number}) for number, event in events)


def _events_of(response: Mapping[str, Any], status: str) -> Iterator[Json]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(output_of(response)):
        yield from item_events(item, index)
    yield {"type": f"response.{status}", "response": response}


def item_events(item: Mapping[str, Any], index: int) -> Iterator[Json]:
    """The events of one item, without their numbers in the stream."""
    place = {"output_index": index}
    yield {"type": "response.output_item.added", **place, "item": item}
    if item.get("type") == "message":
        yield from _text_events(item, place)
    yield {"type": "response.output_item.done", **place, "item": item}


def _text_events(item: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[Json]:
    for number, part in enumerate(objects_in(item.get("content"))):
        at = {**place, "item_id": item.get("id"), "content_index": number}
        if not isinstance(part.get("text"), str):
            continue
        yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
