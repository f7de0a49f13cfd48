"""Chat replies: what is read of them, and what the proxy itself says in their form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces
from proxy.errors import ProxyError
from proxy.http.sse import DONE, event
from proxy.values import json_or_none

C = TypeVar("C", bound="StreamedCall")

ANSWER = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_STREAMED = ("content", "refusal", "function_call")
_MEMBERS = ("role", "content", "refusal", "tool_calls", "function_call", "audio")
_DONE = b"data: [DONE]"
_MAX_DONE = 32


# -- events ------------------------------------------------------------------------------------------------------


def is_greeting(chunk: object) -> bool:
    """Whether the choices of a chunk give a role, and nothing else."""
    choices = chunk.get("choices") if isinstance(chunk, Mapping) else None
    return bool(choices) and isinstance(choices, list) and all(map(_gives_only_role, choices))


def _gives_only_role(choice: object) -> bool:
    delta = choice.get("delta") if isinstance(choice, Mapping) and choice.get("finish_reason") is None else None
    return isinstance(delta, Mapping) and [key for key, value in delta.items() if value] == ["role"]


def is_usage_alone(chunk: object) -> bool:
    """Whether a chunk has a usage and no choices, as the one that `include_usage` asks for."""
    return isinstance(chunk, Mapping) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), Mapping)


def last_event_at(chunk: bytes, sent: bytes) -> int:
    """The index of the `[DONE]` event that ends a chunk of a stream; -1 if the chunk does not end with one.

    `sent` are the bytes before the chunk. A reply's text may contain `data: [DONE]`, but not at the start of a line,
    because there are no bare line ends inside of the JSON of a stream. Comments may follow the event.
    """
    at = chunk.rfind(_DONE, -_MAX_DONE)
    if at < 0 or (chunk[:at] or sent)[-1:] not in b"\r\n":
        return -1
    rest_of_line, *lines = chunk[at + len(_DONE) :].splitlines() or [b""]
    return at if not rest_of_line and all(not line or line.startswith(b":") for line in lines) else -1


# -- the text ----------------------------------------------------------------------------------------------------


def _text_of_reply(document: Any) -> str | None:
    return _text(document, "message")


def _text_of_event(document: Any) -> str | None:
    return _text(document, "delta")


def _text(document: Any, member: str) -> str | None:
    """The text of the only choice, "" if there is no choice or no text; None if there may be several choices."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    if not isinstance(choices, list) or len(choices) > 1:
        return None
    choice = choices[0] if choices else {}
    if not isinstance(choice, Mapping) or choice.get("index"):
        return None
    message = choice.get(member)
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""


TEXT_PLACES = TextPlaces(b"content", _text_of_reply, _text_of_event)


# -- the message -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StreamedMembers:
    """The members of a message besides its role and its tool calls, as far as they have come."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    others: Json = field(default_factory=dict)

    def add(self, delta: Mapping[str, Any]) -> None:
        """Adds a delta: texts and lists grow, other values take the place of earlier ones."""
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            if isinstance(value, str):
                self.texts.setdefault(key, []).append(value)
                continue
            before = self.others.get(key)
            if isinstance(value, list) and isinstance(before, list):
                self.others[key] = before + value
            elif key == "function_call" and isinstance(value, Mapping):
                self.others[key] = _joined(before or {}, value)
            else:
                self.others[key] = value

    def message(self, calls: list[Json]) -> Json:
        """The assistant's message with these tool calls."""
        texts = {key: "".join(parts) for key, parts in self.texts.items()}
        return {
            "role": "assistant",
            "content": None,
            **self.others,
            **texts,
            **({"tool_calls": calls} if calls else {}),
        }


@dataclass(slots=True)
class StreamedCall:
    """A tool call as far as it has come; `index` is the upstream's number of it."""

    index: object
    body: Json = field(default_factory=dict)

    def is_continued_by(self, piece: Mapping[str, Any]) -> bool:
        """Whether a piece belongs to this call; some servers give all calls one number, and tell them apart by id."""
        is_new = piece.get("id") not in (None, "", self.body.get("id")) and function_of(piece).get("name")
        return piece.get("index") == self.index and not is_new

    def add(self, piece: Mapping[str, Any]) -> None:
        """Adds a piece to the call."""
        function = function_of(piece)
        if function:
            piece = {**piece, "function": _joined(function_of(self.body), function)}
        self.body |= {key: value for key, value in piece.items() if key != "index" and value not in (None, "")}


def continued_call(calls: Iterable[C], piece: Mapping[str, Any]) -> C | None:
    """The newest of the calls that a piece belongs to; None if it begins another one."""
    return next((call for call in reversed(list(calls)) if call.is_continued_by(piece)), None)


def function_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a call or of a piece of one; empty if it has none."""
    function = body.get("function")
    return function if isinstance(function, Mapping) else {}


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> Json:
    """A function with one more piece; a server that repeats the whole name adds nothing to it."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}


def items_in(completion: Any) -> Items:
    """The message of the first choice; empty where there is none."""
    try:
        message = completion["choices"][0]["message"]
    except (LookupError, TypeError):
        return ()
    return (sendable(message),) if isinstance(message, Mapping) else ()


@dataclass(slots=True)
class ChatCapture(StreamCapture):
    """A stream is complete if its first choice has finished and no error came."""

    _members: StreamedMembers = field(default_factory=StreamedMembers)
    _calls: list[StreamedCall] = field(default_factory=list)
    _finished: bool = False
    _broken: bool = False

    def feed(self, chunk: bytes) -> None:
        for data in self._events.feed(chunk):
            if data != "[DONE]":
                self._add_event(data)

    def items(self) -> Items:
        """The message that the deltas add up to."""
        if self._broken or not self._finished:
            return ()
        calls = [
            {"id": call.body.get("id", ""), "type": "function", "function": function_of(call.body)}
            for call in self._calls
        ]
        return (sendable(self._members.message(calls)),)

    def _add_event(self, data: str) -> None:
        try:
            chunk = json.loads(data)
            choices = chunk.get("choices") or []
        except (ValueError, AttributeError):
            self._broken = True
            return
        self._broken = self._broken or "error" in chunk
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._add_delta(choice.get("delta") or {})
                self._finished = self._finished or choice.get("finish_reason") is not None

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        self._members.add({key: value for key, value in delta.items() if key in _STREAMED})
        for piece in delta.get("tool_calls") or []:
            call = continued_call(self._calls, piece)
            if call is None:
                call = StreamedCall(piece.get("index"))
                self._calls.append(call)
            call.add(piece)


def sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """A reply's message as a client may send it back: only known members, and null only for `content`."""
    kept = {key: message[key] for key in _MEMBERS if message.get(key) is not None}
    return {"role": "assistant", "content": None, **kept}


# -- what the proxy says -----------------------------------------------------------------------------------------


def error_event(error: ProxyError, _sent: bytes = b"") -> bytes:
    """An error as an event in the middle of a stream."""
    return event(error.to_json())


def empty_chunk(model: str, now: float) -> bytes:
    """A chunk that adds nothing to the message of a stream; `now` is in seconds since the epoch."""
    empty_choice = {"index": 0, "delta": {}, "finish_reason": None}
    head = {"id": "chatcmpl-pending", "object": "chat.completion.chunk", "created": int(now), "model": model}
    return event(json.dumps({**head, "choices": [empty_choice]}).encode())


def as_events(data: bytes, *, is_success: bool) -> bytes | None:
    """A completion as one chunk and `[DONE]`, an error as an event; None if the data is neither."""
    document = json_or_none(data)
    if not isinstance(document, Mapping):
        return None
    if isinstance(document.get("error"), Mapping):
        # An event's data is one line. Line ends in JSON are only white space between tokens, never inside of them.
        return event(data.strip().replace(b"\r", b" ").replace(b"\n", b" "))
    chunk = _as_chunk(document) if is_success else None
    return event(json.dumps(chunk).encode()) + DONE if chunk else None


def _as_chunk(completion: Mapping[str, Any]) -> dict[str, Any] | None:
    """A completion as the only chunk of a stream; None if the document is not a completion."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not all(isinstance(each, Mapping) and "message" in each for each in choices):
        return None
    return {**completion, "object": "chat.completion.chunk", "choices": list(map(_as_delta, choices))}


def _as_delta(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if isinstance(calls, list):
        numbered = [{"index": at, **call} for at, call in enumerate(calls) if isinstance(call, Mapping)]
        message = {**message, "tool_calls": numbered}
    rest = {key: value for key, value in choice.items() if key != "message"}
    return {**rest, "delta": message}
