"""Replies of the Messages API: what is read of them, and what the proxy itself says in their form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces, named_event, objects_in
from proxy.errors import ContextLengthExceeded, ProxyError
from proxy.values import json_or_none

ANSWER = re.compile(rb'"type"\s*:\s*"(?:message(?:_start|_delta|_stop)?|content_block_(?:start|delta|stop)|ping)"')
_GREETINGS = ("message_start", "ping")
_LAST = re.compile(rb'^(?:event: ?message_stop|data: ?\{\s*"type"\s*:\s*"message_stop")', re.MULTILINE)
_MAX_LAST = 512
"""Bytes at the end of a chunk in which the last event is looked for."""
_GROWING = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""Deltas that are pieces of a text: the member that has the piece, and the member of the block that it belongs to."""
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CONFLICT = "invalid_request_error"


# -- events ------------------------------------------------------------------------------------------------------


def is_greeting(event: object) -> bool:
    """Whether an event only opens the message, or keeps the connection alive."""
    return isinstance(event, Mapping) and event.get("type") in _GREETINGS


def last_event_at(chunk: bytes, sent: bytes) -> int:
    """The index of the `message_stop` event that ends a chunk of a stream; -1 if the chunk does not end with one.

    A text may contain these bytes, but not at the start of a line, because JSON has no bare line ends inside.
    """
    start = max(len(chunk) - _MAX_LAST, 0)
    found = _LAST.search(chunk, start)
    if found is None or (chunk[: found.start()] or sent)[-1:] not in b"\r\n":
        return -1
    return found.start()


# -- the text ----------------------------------------------------------------------------------------------------


def text_of(document: Any) -> str:
    """The text blocks of a message, joined."""
    return "".join(block["text"] for block in blocks_of(document) if isinstance(block.get("text"), str))


def blocks_of(document: Any) -> Items:
    """The content blocks of a message that are objects."""
    return objects_in(document.get("content")) if isinstance(document, Mapping) else []


def _text_of_event(document: Any) -> str | None:
    if not isinstance(document, Mapping):
        return None
    delta = document.get("delta")
    text = delta.get("text") if isinstance(delta, Mapping) and delta.get("type") == "text_delta" else None
    return text if isinstance(text, str) else ""


TEXT_PLACES = TextPlaces(b"text", text_of, _text_of_event)


# -- the message -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StreamedMessage:
    """A message as far as its events have come."""

    head: Json = field(default_factory=dict)
    """The members of the message that the first event gives."""
    stop_reason: str | None = None
    usage: Json = field(default_factory=dict)
    is_over: bool = False
    is_broken: bool = False
    _blocks: dict[int, Json] = field(default_factory=dict)
    _pieces: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """The pieces of each block's members that come in pieces."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event; those of other kinds change nothing."""
        match event.get("type"):
            case "message_start":
                self.head = _object(event.get("message"))
                self._add_usage(self.head.get("usage"))
            case "content_block_start":
                self._blocks[index_of(event)] = _object(event.get("content_block"))
            case "content_block_delta":
                self._add_delta(index_of(event), _object(event.get("delta")))
            case "message_delta":
                reason = _object(event.get("delta")).get("stop_reason")
                self.stop_reason = reason if isinstance(reason, str) else self.stop_reason
                self._add_usage(event.get("usage"))
            case "message_stop":
                self.is_over = True
            case "error":
                self.is_broken = True

    @property
    def blocks(self) -> list[Json]:
        """The blocks so far; the input of a call is empty if it is no JSON object."""
        return [self._whole(index, block) for index, block in self._blocks.items()]

    def block(self, index: int) -> Json:
        """The block of an index, as it began; empty if there is none."""
        return self._blocks.get(index, {})

    def _whole(self, index: int, block: Json) -> Json:
        texts = {member: "".join(pieces) for member, pieces in self._pieces.get(index, {}).items()}
        if "input" not in texts:
            return {**block, **{member: f"{block.get(member) or ''}{text}" for member, text in texts.items()}}
        given = json_or_none(texts["input"])
        return {**block, "input": given if isinstance(given, dict) else {}}

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block, kind = self._blocks.setdefault(index, {"type": "text"}), str(delta.get("type"))
        if kind in _GROWING:
            came_as, member = _GROWING[kind]
            self._pieces.setdefault(index, {}).setdefault(member, []).append(str(delta.get(came_as) or ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:
            block.update({key: value for key, value in delta.items() if key != "type"})

    def _add_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping):
            self.usage.update({key: value for key, value in usage.items() if value is not None})


def _object(value: object) -> Json:
    return dict(value) if isinstance(value, Mapping) else {}


def index_of(event: Mapping[str, Any]) -> int:
    """The number of the block that an event belongs to."""
    index = event.get("index")
    return index if isinstance(index, int) else 0


@dataclass(slots=True)
class MessagesCapture(StreamCapture):
    """A stream is complete if it says why it stopped and no error came."""

    _message: StreamedMessage = field(default_factory=StreamedMessage)

    def feed(self, chunk: bytes) -> None:
        for data in self._events.feed(chunk):
            event = json_or_none(data)
            if isinstance(event, Mapping):
                self._message.add(event)

    def items(self) -> Items:
        if self._message.is_broken or self._message.stop_reason is None:
            return ()
        return items_in({"content": self._message.blocks})


def items_in(document: Any) -> Items:
    """A message without empty texts, which are not taken back."""
    kept = [block for block in blocks_of(document) if block.get("type") != "text" or block.get("text")]
    return ({"role": "assistant", "content": kept},) if kept else ()


# -- what the proxy says -----------------------------------------------------------------------------------------


def error_body(error: ProxyError) -> bytes:
    """An error as a body; the upstream's own, which an error may stand for, stays as it is.

    Clients compact by themselves where a message says that the prompt is too long, so ours says it in these words.
    """
    written = json_or_none(own := error.to_json())
    if isinstance(written, Mapping) and written.get("type") == "error":
        return own
    is_too_long = isinstance(error, ContextLengthExceeded)
    message = f"prompt is too long: {error.message}" if is_too_long else error.message
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else _CONFLICT)
    members = {"type": kind, "message": message, "param": error.param, "code": error.code}
    return json.dumps({"type": "error", "error": members}).encode()


def error_event(error: ProxyError, _sent: bytes = b"") -> bytes:
    """An error as an event in the middle of a stream."""
    return b"event: error\ndata: " + error_body(error) + b"\n\n"


def ping(_model: str = "", _now: float = 0.0) -> bytes:
    """An event that says nothing; SDKs pass over it wherever it comes."""
    return named_event({"type": "ping"})


def as_events(data: bytes, *, is_success: bool) -> bytes | None:
    """A message as the events of its stream, an error as an event; None if the data is neither."""
    document = json_or_none(data)
    if not isinstance(document, Mapping):
        return None
    if isinstance(document.get("error"), Mapping):
        return named_event({**document, "type": "error"})
    if not is_success or document.get("type") != "message":
        return None
    return b"".join(map(named_event, _events_of(document)))


def _events_of(message: Mapping[str, Any]) -> Iterator[Json]:
    usage = message.get("usage") or {}
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(blocks_of(message)):
        start, deltas = _streamed(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 0, **usage}}
    yield {"type": "message_stop"}


def _streamed(block: Mapping[str, Any]) -> tuple[Json, list[Json]]:
    """How a block begins in a stream, and its deltas; blocks of other kinds come whole."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": text}]
        case {"type": "thinking", "thinking": str(thought)}:
            signed = {"type": "signature_delta", "signature": block.get("signature", "")}
            return {**block, "thinking": "", "signature": ""}, [{"type": "thinking_delta", "thinking": thought}, signed]
        case {"type": "tool_use" | "server_tool_use" | "mcp_tool_use", "input": given}:
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(given)}]
    return dict(block), []
