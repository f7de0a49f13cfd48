"""Reads a reply while it is relayed: its usage, its ending, and in append mode the assistant's message.

Usage. No event is parsed for it. A usage is at the end of a reply, with some servers at its beginning. So the first and
the last bytes are kept, and searched once at the end of the reply. The key `"usage"` cannot be mistaken: inside a text
its quotation marks would be escaped.

Ending. A digest of the end of the text recognises a reply that a client has rewritten. Clients send a reply back in
many forms: trimmed, without its thinking, or as content parts. Its end survives that, so the digest is made of the last
characters after the thinking, without white space. It is computed from the reply's last bytes once the reply is
complete, backwards from the end, so that only the last events of a long stream are parsed.

Message. Append mode stores the assistant's message as a client would send it back. There is none for an error, an
incomplete stream, or a reply in an unknown form.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

from proxy.endpoints.chat.deltas import StreamedCall, StreamedMembers, continued_call, function_of
from proxy.endpoints.replies import ENDING_LENGTH, Usage, ending, usage_in
from proxy.http.content_encoding import decoder_for, encoding_of
from proxy.http.headers import Headers
from proxy.http.sse import EventReader
from proxy.values import json_or_none

MAX_HELD = 16 * 1024 * 1024
"""Bytes of a reply that is read for append mode, and held back if it comes in one piece; a longer one is not stored."""
HEAD, TAIL = 4 * 1024, 64 * 1024  # bytes

_KEY = '"usage"'

_USAGE = re.compile(_KEY + r"\s*:\s*(?=\{)")

_MARGIN = 16  # characters; enough to find the whole of a tag that ends the thinking just before the ending

_DATA, _DONE = b"data:", b"[DONE]"

_CONTENT = re.compile(rb'"content"\s*:\s*("(?:[^"\\]|\\.)*")')

_PROBE = b"no model says this"

_DECODER = json.JSONDecoder()

_STREAMED = ("content", "refusal", "function_call")
_MEMBERS = ("role", "content", "refusal", "tool_calls", "function_call", "audio")


class WatchedReply:
    """Takes in the bytes of a reply in any form; with a `capture` also for its message.

    A reply in an encoding that cannot be decoded has no usage and no ending.
    """

    def __init__(self, headers: Headers, capture: Capture | None = None) -> None:
        self.headers = headers
        encoding = encoding_of(headers)
        self._decoder = decoder_for(encoding) if encoding else None
        self._is_readable = not encoding or self._decoder is not None
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._kept = self._size = 0
        self._capture = capture
        self._captured = 0

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        if self._is_readable:
            self._keep(chunk)
        if self._capture is not None:
            self._captured += len(chunk)
            self._capture.feed(chunk)
            if self._captured > MAX_HELD:
                self._capture = None

    def _keep(self, chunk: bytes) -> None:
        """Keeps the chunk if it is one of the first or, so far, of the last ones."""
        if self._decoder is not None:
            try:
                chunk = self._decoder.feed(chunk)
            except zlib.error:
                self._is_readable = False
                return
        if len(self._head) < HEAD:
            self._head += chunk[: HEAD - len(self._head)]
        self._tail.append(chunk)
        self._kept += len(chunk)
        self._size += len(chunk)
        while self._kept - len(self._tail[0]) >= TAIL:
            self._kept -= len(self._tail.popleft())

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, if there is a capture and the reply is complete and not too large."""
        return self._capture.message() if self._capture is not None else None

    @property
    def head(self) -> str:
        """The beginning of the reply, at most `HEAD` bytes of it."""
        return self._head.decode("utf-8", "replace")

    def ending(self) -> str:
        """The digest of the end of the reply's text; "" if its last bytes do not show it."""
        tail = b"".join(self._tail)
        return ending_of(tail, is_complete=self._kept == self._size)

    def usage(self) -> Usage | None:
        """The last usage in the reply, or None."""
        tail = b"".join(self._tail).decode("utf-8", "replace")
        known: dict[str, Any] = {}
        for earlier in chain(_usages(tail), _usages(self.head)):
            # Events of Anthropic's streams complete each other: the first has the prompt, the last the reply.
            known = {**earlier, **known}
            if usage := usage_in(known):
                return usage
        return None


def _usages(text: str) -> Iterator[dict[str, Any]]:
    """The usages in a text, the last one first, each without members that are 0 or null."""
    at = len(text)
    while (at := text.rfind(_KEY, 0, at)) >= 0:
        if found := _USAGE.match(text, at):
            try:
                value, _ = _DECODER.raw_decode(text, found.end())
            except (ValueError, RecursionError):
                continue
            yield {key: each for key, each in value.items() if each}


def ending_of(data: bytes, *, is_complete: bool) -> str:
    """The ending of a chat completion, streamed or in one piece, from its last bytes, or all if `is_complete`.

    It is "" if it cannot be determined: if there are several choices or none, or the bytes do not reach back enough.
    """
    if data.lstrip()[:1] == b"{":
        return ending(_text(json_or_none(data), "message") or "") if is_complete else ""
    lines = data.split(b"\n")
    first = 0 if is_complete else 1
    events = _Events()
    pieces: list[str] = []
    missing = ENDING_LENGTH + _MARGIN
    for line in map(bytes.strip, reversed(lines[first:])):
        if not line.startswith(_DATA) or line.endswith(_DONE):
            continue
        piece = events.text(line.removeprefix(_DATA))
        if piece is None:
            return ""
        pieces.append(piece)
        missing -= len("".join(piece.split()))
        if missing <= 0:
            break
    return ending("".join(reversed(pieces))) if is_complete or missing <= 0 else ""


class _Events:
    """Reads the texts of a stream's events, which mostly differ in nothing but the text.

    An event with the same bytes before and after its text as an earlier one is not parsed. Only its text is read, which
    costs a quarter of parsing the event.
    """

    def __init__(self) -> None:
        self._frame: tuple[bytes, bytes] | None = None
        self._has_looked = False

    def text(self, event: bytes) -> str | None:
        """The text of the event's only choice, as `_text` gives it."""
        if self._frame is not None and (framed := _text_within(event, *self._frame)) is not None:
            return framed
        text = _text(json_or_none(event), "delta")
        if text and not self._has_looked:
            self._has_looked, self._frame = True, _frame_of(event)
        return text


def _frame_of(event: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and after the text of an event; None if the text is not found."""
    if (found := _CONTENT.search(event)) is None:
        return None
    before, after = event[: found.start(1)], event[found.end(1) :]
    # What was found may be another member `content`: a text put in its place must come out as the event's text.
    is_text = _text(json_or_none(b'%b"%b"%b' % (before, _PROBE, after)), "delta") == _PROBE.decode()
    return (before, after) if is_text else None


def _text_within(event: bytes, before: bytes, after: bytes) -> str | None:
    """The text of an event between these bytes; None if the event does not have them, or no string between them."""
    if not (event.startswith(before) and event.endswith(after)):
        return None
    try:
        literal = event[len(before) : len(event) - len(after)].decode()
        text, end = _DECODER.raw_decode(literal)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) and end == len(literal) else None


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
        self._chunks.append(chunk)

    def message(self) -> dict[str, Any] | None:
        try:
            message = json.loads(b"".join(self._chunks))["choices"][0]["message"]
        except (ValueError, LookupError, TypeError):
            return None
        return sendable(message) if isinstance(message, Mapping) else None


class StreamCapture:
    """Captures a reply in events, which is complete if its first choice has finished and no error came."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._members = StreamedMembers()
        self._calls: list[StreamedCall] = []
        self._finished = False
        self._broken = False

    def feed(self, chunk: bytes) -> None:
        for data in self._events.feed(chunk):
            if data != "[DONE]":
                self._add_event(data)

    def message(self) -> dict[str, Any] | None:
        """The message that the deltas add up to."""
        if self._broken or not self._finished:
            return None
        calls = [
            {"id": call.body.get("id", ""), "type": "function", "function": function_of(call.body)}
            for call in self._calls
        ]
        return sendable(self._members.message(calls))

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
