"""Captures the assistant's message from a reply, for append mode to store.

A capture is fed the bytes of a reply. At the end it gives the assistant's message as a client would send it back, or
None for an error, an incomplete stream, or a reply in an unknown form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from proxy.http.sse import EventReader

_MEMBERS = ("role", "content", "refusal", "tool_calls", "function_call", "audio")


class Capture(Protocol):
    """Takes in the bytes of one reply."""

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        ...

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, or None if the reply is not complete."""
        ...


def capture_for(content_type: str) -> Capture:
    """A capture for a reply of this content type."""
    return StreamCapture() if content_type.startswith("text/event-stream") else JsonCapture()


class JsonCapture:
    """Captures a reply in one piece."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        self._chunks.append(chunk)

    def message(self) -> dict[str, Any] | None:
        """The message of the first choice."""
        try:
            message = json.loads(b"".join(self._chunks))["choices"][0]["message"]
        except (ValueError, LookupError, TypeError):
            return None
        return sendable(message) if isinstance(message, Mapping) else None


class StreamCapture:
    """Captures a reply in events, which is complete if its first choice has finished and no error came."""

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
                self._add_event(data)

    def message(self) -> dict[str, Any] | None:
        """The message that the deltas add up to."""
        if self._broken or not self._finished:
            return None
        calls = [call for _, call in sorted(self._calls.items())]
        return sendable({**self._message, "tool_calls": calls or None})

    def _add_event(self, data: str) -> None:
        try:
            event = json.loads(data)
            choices = event.get("choices") or []
        except (ValueError, AttributeError):
            self._broken = True
            return
        self._broken = self._broken or "error" in event
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._add_delta(choice.get("delta") or {})
                self._finished = self._finished or choice.get("finish_reason") is not None

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for key in ("content", "refusal"):
            if isinstance(delta.get(key), str):
                self._message[key] = (self._message.get(key) or "") + delta[key]
        for piece in delta.get("tool_calls") or []:
            self._add_call(piece)
        if isinstance(delta.get("function_call"), Mapping):
            self._message["function_call"] = _joined(self._message.get("function_call") or {}, delta["function_call"])

    def _add_call(self, piece: Mapping[str, Any]) -> None:
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
    """A reply's message as a client may send it back: only known members, and null only for `content`."""
    kept = {key: message[key] for key in _MEMBERS if message.get(key) is not None}
    return {"role": "assistant", "content": None, **kept}
