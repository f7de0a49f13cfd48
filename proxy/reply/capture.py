"""The reply as a message: what append mode stores of what it relays.

A capture is fed the bytes of a reply and knows, when they have ended, the assistant's message as a client would send it
back, or that there is none: an error, a stream that was cut, a reply in a form that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from proxy.http.sse import EventReader

_KEPT = ("role", "content", "refusal", "tool_calls", "function_call", "audio")


class Capture(Protocol):
    """Takes in a reply."""

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        ...

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, or None where the reply has not come whole."""
        ...


def capture_for(content_type: str) -> Capture:
    """The capture for a reply of this type."""
    return StreamCapture() if content_type.startswith("text/event-stream") else JsonCapture()


class JsonCapture:
    """A reply in one piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        self._parts.append(chunk)

    def message(self) -> dict[str, Any] | None:
        """The message of the first choice."""
        try:
            message = json.loads(b"".join(self._parts))["choices"][0]["message"]
        except (ValueError, LookupError, TypeError):
            return None
        return sendable(message) if isinstance(message, Mapping) else None


class StreamCapture:
    """A reply in events; whole when its first choice has finished and no error came."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finished = False
        self._broken = False

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        for data in self._events.feed(chunk):
            if data != "[DONE]":
                self._event(data)

    def message(self) -> dict[str, Any] | None:
        """The message that the deltas add up to."""
        if self._broken or not self._finished:
            return None
        calls = [call for _, call in sorted(self._calls.items())]
        return sendable({**self._message, "tool_calls": calls or None})

    def _event(self, data: str) -> None:
        try:
            event = json.loads(data)
            choices = event.get("choices") or []
        except (ValueError, AttributeError):
            self._broken = True
            return
        self._broken = self._broken or "error" in event
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._delta(choice.get("delta") or {})
                self._finished = self._finished or choice.get("finish_reason") is not None

    def _delta(self, delta: Mapping[str, Any]) -> None:
        for key in ("content", "refusal"):
            if isinstance(delta.get(key), str):
                self._message[key] = (self._message.get(key) or "") + delta[key]
        for piece in delta.get("tool_calls") or []:
            self._call(piece)
        if isinstance(delta.get("function_call"), Mapping):
            self._message["function_call"] = _joined(self._message.get("function_call") or {}, delta["function_call"])

    def _call(self, piece: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(
            piece.get("index", len(self._calls)), {"id": "", "type": "function", "function": {}}
        )
        call["id"] = piece.get("id") or call["id"]
        call["function"] = _joined(call["function"], piece.get("function") or {})


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": piece.get("name") or so_far.get("name", ""),
        "arguments": so_far.get("arguments", "") + (piece.get("arguments") or ""),
    }


def sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """A reply's message as a client may send it back: known members, no nulls but a content's."""
    kept = {key: message[key] for key in _KEPT if message.get(key) is not None}
    return {"role": "assistant", "content": None, **kept}
