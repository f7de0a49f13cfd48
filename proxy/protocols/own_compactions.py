"""A compaction of the proxy's own as Responses sends one: the parts of a view, the documents, and the events. Pure.

A compaction answers in one of two ways. The endpoint for it gives the list that comes next: what stays as it is, and
one item. A trigger gets the item alone, and the client keeps its own user and system messages. So the item holds all of
the view that the client will not send otherwise. Reasoning is left out, since what stood before it changes, and so are
the ids of what it led to, because the server knows by them which reasoning is missing. What memory has put in is left
out too: it is about the requests before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.protocols.replies import Json, named_event
from strategies.core.messages import Message, Role, dump
from strategies.core.pieces import Literal, PieceKind
from strategies.core.transcript import Systems
from strategies.core.view import Item, View
from strategies.dialects.responses import REASONING, RESPONSES

_LEFT_OUT = (PieceKind.PATCH, PieceKind.MEMORY)
_WITH_ID = ("message", "function_call", "custom_tool_call")
NOTE = "[Condensed history] {}: results of earlier calls were shortened or left out here; look them up again if needed."


class Parts(NamedTuple):
    """A view in two parts, as JSON texts: what the client keeps as it is, and what its item stands for."""

    kept: Sequence[str]
    sealed: Sequence[str]


def parted(view: View, name: str, *, keeps_users: bool) -> Parts:
    """A condensed view for a client that gets all of it, or that `keeps_users`, its own user messages, by itself.

    System messages are never in the item: those that go on are sent beside it. Without a replacement, whose text says
    what was condensed, or a vendor's own compaction, the item begins with a note that has this `name`, by which it is
    known when it comes back.
    """
    items = [item for item in view.items if not _is_left_out(item)]
    if keeps_users:
        rest = [item for item in items if item.source is None or item.message.written_role != "user"]
        kept = []
    else:
        first = next((place for place, item in enumerate(items) if item.role is not Role.USER), len(items))
        kept, rest = items[:first], items[first:]
    is_known = view.replacement is not None or view.is_opaque
    note = [] if is_known else [dump(RESPONSES.user(NOTE.format(name)))]
    first_systems, systems = _systems_of(view.transcript.systems)
    shown = [*first_systems, *(item.message for item in kept), *systems]
    listed = [_listed(message, f"msg_{name}{place}") for place, message in enumerate(shown)]
    return Parts(listed, [*note, *filter(None, map(_detached, rest))])


def _systems_of(systems: Systems) -> tuple[list[Message], list[Message]]:
    """The system messages before all others, and the rest."""
    first = [message for place, message in systems if not place]
    return first, [message for _, message in systems][len(first) :]


def _is_left_out(item: Item) -> bool:
    return isinstance(item.piece, Literal) and item.piece.kind in _LEFT_OUT


def _listed(message: Message, name: str) -> str:
    """A message as the server lists it, with an id and with its text as a part."""
    body = message.body
    if body.get("type", "message") != "message":
        return message.raw
    content = body.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return dump({"type": "message", "id": name, "status": "completed", **body, "content": parts})


def _detached(item: Item) -> str:
    """An item without what ties it to reasoning; "" for reasoning itself."""
    body, kind = item.message.body, str(item.message.body.get("type") or "message")
    if kind == REASONING:
        return ""
    if kind in _WITH_ID and "id" in body:
        return dump({name: value for name, value in body.items() if name != "id"})
    return item.message.raw


# -- what the client gets ------------------------------------------------------------------------------------------


def compaction_document(one: str, at: float, output: Sequence[str], item: Json, usage: Json) -> str:
    """The answer of the endpoint; `output` is what stays as it is, as JSON texts."""
    listed = ",".join([*output, dump(item)])
    head = dump({"id": f"resp_{one}", "object": "response.compaction", "created_at": int(at)})[:-1]
    return f'{head},"output":[{listed}],"usage":{dump(usage)}}}'


def response_document(one: str, at: float, model: str, item: Json, usage: Json) -> Json:
    """The response to a trigger: one item."""
    nothing: dict[str, Any] = dict.fromkeys(("error", "incomplete_details", "instructions", "previous_response_id"))
    head = {"id": f"resp_{one}", "object": "response", "created_at": int(at), "status": "completed", "model": model}
    plain = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}, "store": False}
    return {**head, **nothing, **plain, "output": [item], "usage": usage}


def response_events(response: Json) -> Iterator[bytes]:
    """The same as a stream."""
    (item,) = response["output"]
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    place = {"output_index": 0}
    events: list[Mapping[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", **place, "item": item},
        {"type": "response.compaction.compacting", **place, "item_id": item["id"]},
        {"type": "response.output_item.done", **place, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return (named_event({**event, "sequence_number": number}) for number, event in enumerate(events))


def usage_of(prompt: int, written: int) -> Json:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + written,
    }
