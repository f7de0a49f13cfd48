"""Replies of the Responses API: how they are read, and what the client gets of those with hidden calls. Pure.

The server refuses reasoning without the item that follows it. So reasoning directly before a hidden call is hidden too,
and goes back to the model with the call.

A model that searches answers in several replies; the client sees one response. Events pass as they come, except that
their numbers count only the events and items that the client gets. The events of hidden calls are removed, and if
another reply follows, so is the end of this one. The events of reasoning wait until the next item shows whether it is a
hidden call; if it is, the client gets neither. The last event holds the whole response, with the items and the output
tokens of all replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.hidden_calls import NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, Splicer, rewritten, with_usage
from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces, named_event
from proxy.values import json_or_none, object_at, objects_at, word_at
from strategies.dialects.responses import REASONING

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
    """Captures a stream, whose last event holds the whole response."""

    _response: object = None

    def _add(self, data: str) -> None:
        # Only the last event is parsed: it repeats what the others say.
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


# -- hidden calls ---------------------------------------------------------------------------------------------------


_ENDED = (None, "completed", "incomplete")
"""Statuses of replies that did not fail; some servers send none."""
_CALLS = ("function_call", "custom_tool_call", "computer_call", "local_shell_call")
NOTHING_SAID: Json = {
    "type": "message",
    "id": "msg_no_answer",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": NO_ANSWER, "annotations": [], "logprobs": []}],
}


def _silence(index: int) -> Iterator[Json]:
    """The events of `NOTHING_SAID` at a place, without their numbers in the stream."""
    place = {"output_index": index}
    text = {**place, "item_id": NOTHING_SAID["id"], "content_index": 0, "logprobs": []}
    yield {"type": "response.output_item.added", **place, "item": NOTHING_SAID}
    yield {"type": "response.output_text.delta", **text, "delta": NO_ANSWER}
    yield {"type": "response.output_text.done", **text, "text": NO_ANSWER}
    yield {"type": "response.output_item.done", **place, "item": NOTHING_SAID}


@dataclass(frozen=True, slots=True)
class SaidItems(Said):
    """A response, given its items."""

    complete = (None, "completed")
    items: Items

    @property
    def text(self) -> str:
        return text_of(self.items)

    @property
    def visible(self) -> Items:
        """The items without hidden calls and the reasoning that led to them."""
        hidden = hidden_places(self.items)
        return [item for place, item in enumerate(self.items) if place not in hidden]

    @property
    def memory_calls(self) -> Items:
        return [item for item in self.items if is_hidden(item)]

    @property
    def has_client_calls(self) -> bool:
        """Whether there are calls that the client must answer."""
        return any(item.get("type") in _CALLS and not is_hidden(item) for item in self.items)

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The items that are sent back: the hidden ones, and the messages unless the client has calls to answer.

        The client's own list has the visible items too, later in the request, and no id may occur twice. So messages
        go back without their ids, and other visible items are left out. An id also tells the server which reasoning an
        item followed. So if some reasoning is visible, and is left out, hidden calls go back without their ids and
        without their reasoning.
        """
        hidden, repeats = hidden_places(self.items), not self.has_client_calls
        is_torn = any(item.get("type") == REASONING for item in self.visible)
        sent: list[Mapping[str, Any]] = []
        for place, item in enumerate(self.items):
            if is_hidden(item):
                call = _without(item, "id") if is_torn else item
                sent.append({**call, "call_id": item.get("call_id") or f"{prefix}_{place}"})
            elif place in hidden and not is_torn:
                sent.append(item)
            elif repeats and item.get("type") == "message":
                sent.append(_without(item, "id", "status"))
        calls = [HiddenCall(str(item["call_id"]), item.get("arguments")) for item in sent if is_hidden(item)]
        return HiddenRound(sent, self.text if repeats else "", calls)


def is_hidden(item: Mapping[str, Any]) -> bool:
    """Whether an item is a call of the memory tool."""
    return item.get("type") == "function_call" and item.get("name") == NAME


def hidden_places(items: Items) -> set[int]:
    """The indices of hidden calls, and of the reasoning directly before each."""
    places: set[int] = set()
    for place, item in reversed(list(enumerate(items))):
        if is_hidden(item) or (item.get("type") == REASONING and place + 1 in places):
            places.add(place)
    return places


def _without(item: Mapping[str, Any], *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


def response_for_client(response: Mapping[str, Any], shown: Items, earlier: Sequence[Said]) -> Json:
    """A response with these items, and with the usage of the `earlier` replies."""
    return with_usage({**without_tool(response), "output": list(shown)}, earlier)


def shown_items(said: SaidItems, earlier: Sequence[Said]) -> list[Mapping[str, Any]]:
    """The items of all replies that the client gets; if they say nothing, a message that there is no answer.

    Reasoning alone would be refused when the client sends it back.
    """
    before = [item for reply in earlier if isinstance(reply, SaidItems) for item in reply.visible]
    shown = [*before, *said.visible]
    has_hidden = bool(earlier or said.memory_calls)
    is_silent = all(
        item.get("type") == REASONING or (item.get("type") == "message" and not text_of([item]).strip())
        for item in shown
    )
    return [*shown, NOTHING_SAID] if has_hidden and is_silent and said.finish in _ENDED else shown


def without_tool(response: Mapping[str, Any]) -> Json:
    """A response without the memory tool in its `tools`, which repeat those of the request."""
    tools = response.get("tools")
    if not isinstance(tools, list):
        return dict(response)
    return {**response, "tools": [tool for tool in tools if word_at(tool, "name") != NAME]}


def said_in(response: object, items: Items = ()) -> SaidItems:
    """What the model said in a response; `items` are those that came before, used if it has none."""
    status, usage = word_at(response, "status") or None, object_at(response, "usage") or None
    return SaidItems(objects_at(response, "output") or items, finish=status, usage=usage)


_Event = tuple[list[bytes], Json]
"""The lines of an event, and its data."""


class ResponsesSplicer(Splicer[SaidItems]):
    """Joins replies into one stream."""

    answer = ANSWER
    _sent_events = 0
    _sent_items = 0

    def _reset(self) -> None:
        super()._reset()
        self._items: dict[int, Mapping[str, Any]] = {}
        self._numbers: dict[int, int | None] = {}
        self._held: list[_Event] = []  # of reasoning that may have led to a hidden call
        self._response: Mapping[str, Any] = {}

    @property
    def said(self) -> SaidItems:
        """What the model has said in the reply so far."""
        return said_in(self._response, list(self._items.values()))

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: events that were held back, and an unfinished last one."""
        rest = super().rest()
        return b"" if self.is_continued else self._released() + rest

    def _release(self) -> bytes:
        return self._released() + super()._release()

    def _passed(self, lines: list[bytes], body: Json) -> bytes:
        if word_at(body, "type") in GREETINGS:
            return b"" if self._earlier else self._numbered((lines, body), without_tool)
        if word_at(body, "type") in ENDINGS:
            return self._pass_end((lines, body))
        return self._pass_item_event((lines, body))

    def _pass_item_event(self, event: _Event) -> bytes:
        """The bytes for the client when an event comes that belongs to an item, or to nothing."""
        body = event[1]
        index = body.get("output_index")
        if not isinstance(index, int):
            return self._released() + self._numbered(event)
        if isinstance(item := body.get("item"), Mapping):
            is_new, self._items[index] = index not in self._items, item
            if is_new and is_hidden(item):
                self._held.clear()
                self._numbers[index] = None
        if index in self._numbers:
            return b"" if self._numbers[index] is None else self._numbered(event)
        if self._items.get(index, {}).get("type") == REASONING:
            self._held.append(event)
            return b""
        return self._released() + self._numbered(event)

    def _released(self) -> bytes:
        held, self._held = self._held, []
        return b"".join(map(self._numbered, held))

    def _numbered(self, event: _Event, shown: Callable[[Mapping[str, Any]], Json] = dict) -> bytes:
        """An event with its numbers in the client's stream; `shown` changes the response in it."""
        lines, body = event
        self._has_sent = self._has_sent or word_at(body, "type") not in GREETINGS
        changed = dict(body)
        if isinstance(response := body.get("response"), Mapping):
            changed["response"] = shown(response)
        index = body.get("output_index")
        if isinstance(index, int):
            if index not in self._numbers:
                self._numbers[index], self._sent_items = self._sent_items, self._sent_items + 1
            changed["output_index"] = self._numbers[index]
        if "sequence_number" in body:
            changed["sequence_number"] = self._next_number()
        return rewritten(lines, body, changed)

    def _pass_end(self, event: _Event) -> bytes:
        """The bytes for the client when the event comes that ends a reply; none if another reply follows."""
        self._response, self.is_over = object_at(event[1], "response"), True
        if self.is_continued:
            return b""
        released, shown = self._released(), shown_items(self.said, self._earlier)
        added = _silence(self._sent_items) if shown[-1:] == [NOTHING_SAID] else ()
        written = b"".join([named_event({**event, "sequence_number": self._next_number()}) for event in added])
        last = self._numbered(event, lambda whole: response_for_client(whole, shown, self._earlier))
        return released + written + last

    def _next_number(self) -> int:
        self._sent_events += 1
        return self._sent_events - 1
