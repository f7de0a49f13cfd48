"""Joins several streams of the Responses API into one stream for the client: bytes in, bytes out. Pure.

A model that searches answers in several replies; the client sees one response. Events pass as they come; what changes
in them are the numbers, which count all events and all items that the client gets. The events of hidden calls are taken
out, and so is the end of a reply that another one follows. The events of reasoning wait until the next item shows
whether it led to a hidden call: then the client gets neither. The last event has the whole response, with the items of
all replies and the output tokens of all of them.

How the driver uses a splicer is told in `proxy.endpoints.hidden_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxy.endpoints.hidden_calls import Splicer, rewritten
from proxy.endpoints.responses.hidden_calls import (
    NOTHING_SAID,
    SaidItems,
    is_hidden,
    response_for_client,
    shown_items,
    without_tool,
)
from proxy.endpoints.responses.replies import (
    ANSWER,
    ENDINGS,
    Json,
    is_greeting,
    item_events,
    named_event,
    output_of,
)
from proxy.values import json_or_none, word_at
from strategies.dialects.responses import REASONING

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
        """What the model said in the reply, as far as it has come."""
        usage = self._response.get("usage")
        items = output_of(self._response) or list(self._items.values())
        return SaidItems(items, word_at(self._response, "status"), usage if isinstance(usage, Mapping) else None)

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        return self.is_over and self._runs_calls and self.said.calls_memory

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: the rest of its last event, unchanged."""
        rest = super().rest()
        return b"" if self.is_continued else self._released() + rest

    def _passed(self, lines: list[bytes], data: bytes) -> bytes:
        body = json_or_none(data) if data else None
        if not isinstance(body, dict):
            return b"".join(lines)
        if is_greeting(body):
            return b"" if self._earlier else self._numbered((lines, body), without_tool)
        if word_at(body, "type") in ENDINGS:
            return self._pass_end((lines, body))
        return self._pass_item_event((lines, body))

    def _pass_item_event(self, event: _Event) -> bytes:
        """An event of an item, or what has waited for it; events that belong to no item pass as they come."""
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
        """An event with the numbers that it has in the client's stream, and its response as it is `shown`."""
        lines, body = event
        self._has_sent = self._has_sent or not is_greeting(body)
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
        return b"".join(lines) if changed == body else rewritten(lines, changed)

    def _pass_end(self, event: _Event) -> bytes:
        """The event that ends a reply; nothing if another one follows."""
        response = event[1].get("response")
        self._response, self.is_over = response if isinstance(response, Mapping) else {}, True
        if self.is_continued:
            return b""
        released, shown = self._released(), shown_items(self.said, self._earlier)
        added = item_events(NOTHING_SAID, self._sent_items) if shown[-1:] == [NOTHING_SAID] else ()
        written = b"".join([named_event({**each, "sequence_number": self._next_number()}) for each in added])
        last = self._numbered(event, lambda whole: response_for_client(whole, shown, self._earlier))
        return released + written + last

    def _next_number(self) -> int:
        self._sent_events += 1
        return self._sent_events - 1
