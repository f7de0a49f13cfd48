"""Responses: how the memory tool is offered, and one reply with the calls of it that the client must not see. Pure.

Reasoning is refused where the item that it led to is missing. So reasoning directly before a hidden call is hidden, and
goes back to the model with the call.

A model that searches answers in several replies; the client sees one response. Events pass as they come; what changes
in them are the numbers, which count all events and all items that the client gets. The events of hidden calls are taken
out, and so is the end of a reply that another one follows. The events of reasoning wait until the next item shows
whether it led to a hidden call: then the client gets neither. The last event has the whole response, with the items of
all replies and the output tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.endpoints.endpoint import Values
from proxy.endpoints.hidden_calls import (
    FREE_CHOICES,
    NAME,
    NO_ANSWER,
    HiddenCall,
    HiddenRound,
    Said,
    Splicer,
    ToolUse,
    rewritten,
)
from proxy.endpoints.replies import Items, Json, named_event
from proxy.endpoints.responses.replies import (
    ANSWER,
    ENDINGS,
    is_greeting,
    item_events,
    output_of,
    text_of,
)
from proxy.values import count_at, json_or_none, word_at
from strategies.core.messages import dump
from strategies.dialects.responses import REASONING

_ENDED = ("", "completed", "incomplete")
"""Statuses of replies that did not fail; some servers give none."""
NOTHING_SAID: Json = {
    "type": "message",
    "id": "msg_no_answer",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": NO_ANSWER, "annotations": [], "logprobs": []}],
}


@dataclass(frozen=True, slots=True)
class SaidItems(Said):
    """A response by its items, and its status."""

    complete = ("", "completed")
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
        """Whether the client is to answer anything."""
        return any(_is_call(item) and not is_hidden(item) for item in self.items)

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The items that are sent back: what is hidden, and the messages unless the client has calls to answer.

        The client's list has the visible items too, later in the request, and no id may be there twice. So messages
        go back without theirs, and other visible items do not. By an id the server also knows what reasoning an item
        followed; where that is visible, hidden calls have no id and other reasoning is left out.
        """
        hidden, repeats = hidden_places(self.items), not self.has_client_calls
        is_torn = any(item.get("type") == REASONING for item in self.visible)
        sent: list[Mapping[str, Any]] = []
        for place, item in enumerate(self.items):
            if is_hidden(item):
                sent.append(_named(_without(item, "id") if is_torn else item, f"{prefix}_{place}"))
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
    """The places of hidden calls, and of the reasoning directly before each."""
    places: set[int] = set()
    for place, item in reversed(list(enumerate(items))):
        if is_hidden(item) or (item.get("type") == REASONING and place + 1 in places):
            places.add(place)
    return places


def _is_call(item: Mapping[str, Any]) -> bool:
    return str(item.get("type")) in ("function_call", "custom_tool_call", "computer_call", "local_shell_call")


def _named(call: Mapping[str, Any], name: str) -> Json:
    """A call with an id by which its result is known."""
    return {**call, "call_id": call.get("call_id") or name}


def _without(item: Mapping[str, Any], *names: str) -> Json:
    return {name: value for name, value in item.items() if name not in names}


def results(found: Sequence[tuple[str, str]]) -> Items:
    """The items that answer calls, given by their ids, with these texts."""
    return [{"type": "function_call_output", "call_id": id, "output": text} for id, text in found]


def usage_for_client(usage: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> Json:
    """The usage of the last reply with the output tokens of the `earlier` ones added; the prompt is the last's."""
    total: Json = dict(usage)
    for each in earlier:
        total["output_tokens"] = count_at(total, "output_tokens") + count_at(each, "output_tokens")
        details, before = total.get("output_tokens_details"), each.get("output_tokens_details")
        reasoned = count_at(before, "reasoning_tokens")
        if isinstance(details, Mapping) and reasoned:
            more = count_at(details, "reasoning_tokens") + reasoned
            total["output_tokens_details"] = {**details, "reasoning_tokens": more}
    if "total_tokens" in total:
        total["total_tokens"] = count_at(total, "input_tokens") + count_at(total, "output_tokens")
    return total


def response_for_client(response: Mapping[str, Any], shown: Items, earlier: Sequence[Said]) -> Json:
    """A response that shows these items, with the usage of the `earlier` replies."""
    usage, usages = response.get("usage"), [each.usage for each in earlier if each.usage]
    counted = usage_for_client(usage, usages) if isinstance(usage, Mapping) and usages else usage
    return {**without_tool(response), "output": list(shown), "usage": counted}


def shown_items(said: SaidItems, earlier: Sequence[Said]) -> list[Mapping[str, Any]]:
    """The items that the client gets of all replies; a message that there is no answer where they say nothing.

    Reasoning alone would be refused when the client sends it back.
    """
    before = [item for each in earlier if isinstance(each, SaidItems) for item in each.visible]
    shown = [*before, *said.visible]
    has_hidden = bool(earlier or said.memory_calls)
    is_silent = all(item.get("type") == REASONING or is_empty(item) for item in shown)
    return [*shown, NOTHING_SAID] if has_hidden and is_silent and said.finish in _ENDED else shown


def is_empty(item: Mapping[str, Any]) -> bool:
    """Whether an item is a message without text."""
    return item.get("type") == "message" and not text_of([item]).strip()


def without_tool(response: Mapping[str, Any]) -> Json:
    """A response, which repeats the tools of its request, without the memory tool."""
    tools = response.get("tools")
    if not isinstance(tools, list):
        return dict(response)
    return {**response, "tools": [tool for tool in tools if word_at(tool, "name") != NAME]}


# -- a reply in one piece ----------------------------------------------------------------------------------------


def said_in(data: bytes) -> SaidItems | None:
    """What the model said in a JSON reply; None where the reply is no response."""
    body = json_or_none(data)
    if not isinstance(body, dict) or not isinstance(body.get("output"), list):
        return None
    return _said(body, output_of(body))


def _said(response: Mapping[str, Any], items: Items) -> SaidItems:
    usage = response.get("usage")
    return SaidItems(items, finish=word_at(response, "status"), usage=usage if isinstance(usage, Mapping) else None)


def reply_for_client(data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
    """The JSON reply as the client gets it, as `JoinReplies` says."""
    said, response = said_in(data), json_or_none(data)
    if said is None:
        return data
    shown = response_for_client(response, shown_items(said, earlier if keeps_text else ()), earlier)
    return data if shown == response else dump(shown).encode()


# -- the tool ----------------------------------------------------------------------------------------------------


def tool(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """A tool as JSON text."""
    return dump({"type": "function", "name": name, "description": description, "parameters": parameters})


def tool_use(values: Values) -> ToolUse | None:
    """What a request says of tools; None if they are in no known form.

    A request without tools that wants a reply by a schema is a side call, such as for a title, and gets none.
    """
    tools, text = values.get("tools"), values.get("text")
    if not (tools is None or isinstance(tools, list)):
        return None
    names = frozenset(word_at(each, "name") for each in tools or ())
    form = text.get("format") if isinstance(text, Mapping) else None
    is_side = not tools and word_at(form, "type") == "json_schema"
    runs_calls = values.get("tool_choice") in FREE_CHOICES and values.get("background") is not True
    return ToolUse(names, bool(tools), not is_side, runs_calls)


def tool_members(tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:  # noqa: ARG001
    """The members that offer `tools`; in the last request none of them may be called."""
    return {"tools": tools, "tool_choice": '"none"'} if is_last else {"tools": tools}


# -- a reply in events --------------------------------------------------------------------------------------------

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
        return _said(self._response, output_of(self._response) or list(self._items.values()))

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
