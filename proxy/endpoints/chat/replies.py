"""What is read of chat replies: their text, and the message that the chunks of a stream add up to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces
from proxy.values import json_or_none, object_at

ANSWER = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_MEMBERS = ("role", "content", "refusal", "tool_calls", "function_call", "audio")


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


TEXT_PLACES = TextPlaces(
    b"content", lambda document: _text(document, "message"), lambda document: _text(document, "delta")
)


@dataclass(slots=True)
class StreamedCall:
    """A tool call as far as it has come."""

    index: object
    """The upstream's number of it."""
    body: Json = field(default_factory=dict)
    number: object = None
    """The client's number of it, if that is another."""


@dataclass(slots=True)
class StreamedMessage:
    """A message as far as its deltas have come."""

    calls: list[StreamedCall] = field(default_factory=list)
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _others: Json = field(default_factory=dict)

    def add(self, delta: Mapping[str, Any]) -> None:
        """Adds all of a delta but its calls: texts and lists grow, other values take the place of earlier ones."""
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            if isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                continue
            before = self._others.get(key)
            if isinstance(value, list) and isinstance(before, list):
                self._others[key] = before + value
            elif key == "function_call" and isinstance(value, Mapping):
                self._others[key] = _joined(before or {}, value)
            else:
                self._others[key] = value

    def add_call(self, piece: Mapping[str, Any]) -> StreamedCall:
        """Adds a piece of a call to the newest call that it belongs to, or begins another one.

        Some servers give all calls one number, and tell them apart by id.
        """
        function = object_at(piece, "function")
        for call in reversed(self.calls):
            is_new = piece.get("id") not in (None, "", call.body.get("id")) and function.get("name")
            if piece.get("index") == call.index and not is_new:
                break
        else:
            call = StreamedCall(piece.get("index"))
            self.calls.append(call)
        if function:
            piece = {**piece, "function": _joined(object_at(call.body, "function"), function)}
        call.body |= {key: value for key, value in piece.items() if key != "index" and value not in (None, "")}
        return call

    @property
    def has_text(self) -> bool:
        return any(self._texts.get("content", ()))

    @property
    def message(self) -> Json:
        """The assistant's message."""
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        calls = {"tool_calls": [call.body for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": None, **self._others, **texts, **calls}


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> Json:
    """A function with one more piece; a server that repeats the whole name adds nothing to it."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}


@dataclass(slots=True)
class ChatCapture(StreamCapture):
    """A stream is complete if its first choice has finished and no error came."""

    _message: StreamedMessage = field(default_factory=StreamedMessage)
    _finished: bool = False
    _broken: bool = False

    def items(self) -> Items:
        if self._broken or not self._finished:
            return ()
        bodies = [call.body for call in self._message.calls]
        calls = [
            {"id": body.get("id", ""), "type": "function", "function": object_at(body, "function")} for body in bodies
        ]
        return (sendable({**self._message.message, "tool_calls": calls or None}),)

    def _add(self, data: str) -> None:
        if data == "[DONE]":
            return
        chunk = json_or_none(data)
        self._broken = self._broken or not isinstance(chunk, dict) or "error" in chunk
        for choice in () if self._broken else chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                delta = choice.get("delta") or {}
                self._message.add(delta)
                for piece in delta.get("tool_calls") or ():
                    self._message.add_call(piece)
                self._finished = self._finished or choice.get("finish_reason") is not None


def sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """A reply's message as a client may send it back: only known members, and null only for `content`."""
    kept = {key: message[key] for key in _MEMBERS if message.get(key) is not None}
    return {"role": "assistant", "content": None, **kept}
