"""Edits the usage in a reply before the client sees it. Pure: bytes of a reply in, bytes for the client out.

By default a client, which may compact its own history by `usage`, sees the tokens of what was forwarded. It may be
shown instead what its own message list would have cost: then the tokens that were left out are added to the one usage
of the reply. And if the proxy has asked for the usage of a stream and the client has not, the usage event is removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from proxy.http.content_encoding import encoding_of
from proxy.http.headers import Headers
from proxy.http.sse import EventReader, LineSplitter, is_event_stream
from proxy.values import json_or_none

_KEY = b'"usage"'
_COUNTS = ("prompt_tokens", "input_tokens", "total_tokens")


class Editor(Protocol):
    """Changes a reply on its way to the client."""

    def feed(self, chunk: bytes) -> bytes:
        """Takes in the next chunk of the reply and returns what can be sent now."""
        ...

    def end(self) -> bytes:
        """Returns what is left to send at the end of the reply."""
        ...


class WholeEditor:
    """Adds `extra_tokens` to the prompt tokens of a reply in one piece, which is sent at its end."""

    def __init__(self, extra_tokens: int) -> None:
        self._extra_tokens = extra_tokens
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Keeps the chunk and returns nothing."""
        self._chunks.append(chunk)
        return b""

    def end(self) -> bytes:
        """Returns the whole reply."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        return add_prompt_tokens(body, self._extra_tokens)


class StreamEditor:
    """Adds `extra_tokens` to the prompt tokens of a stream's usage, or removes the usage event.

    Complete lines are passed on at once, except those of an event with a usage: they wait for the end of the event.
    """

    def __init__(self, extra_tokens: int, *, removes_usage: bool) -> None:
        self._extra_tokens = extra_tokens
        self._removes_usage = removes_usage
        self._lines = LineSplitter()
        self._usage_event: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Returns the lines completed by this chunk, without those of a usage event that is not complete yet."""
        return b"".join([self._edit_line(line) for line in self._lines.feed(chunk)])

    def _edit_line(self, line: bytes) -> bytes:
        if self._usage_event or (line.startswith(b"data:") and _KEY in line):
            self._usage_event.append(line)
            return self._end_event() if not line.strip() else b""
        return line

    def _end_event(self) -> bytes:
        event, self._usage_event = b"".join(self._usage_event), []
        return b"" if self._removes_usage and is_usage_alone(event) else add_prompt_tokens(event, self._extra_tokens)

    def end(self) -> bytes:
        """Returns the incomplete event and line at the end, unedited."""
        rest, self._usage_event = b"".join([*self._usage_event, self._lines.take_rest()]), []
        return rest


def editor_for(headers: Headers, extra_tokens: int, *, removes_usage: bool) -> Editor | None:
    """The editor for a reply with these headers; None if there is nothing to edit or the reply is encoded."""
    if not (extra_tokens or removes_usage) or encoding_of(headers):
        return None
    if is_event_stream(headers):
        return StreamEditor(extra_tokens, removes_usage=removes_usage)
    return WholeEditor(extra_tokens) if extra_tokens else None


def is_usage_alone(event: bytes) -> bool:
    """Whether an event has a usage and no choices, as the event that `include_usage` asks for."""
    for data in EventReader().feed(event):
        value = json_or_none(data)
        return isinstance(value, Mapping) and value.get("choices") == [] and isinstance(value.get("usage"), Mapping)
    return False


def add_prompt_tokens(text: bytes, extra_tokens: int) -> bytes:
    """A body or event with prompt tokens added in its last usage; everything else keeps its bytes.

    A text whose last `"usage"` is not an object is returned as it is.
    """
    at = text.rfind(_KEY) if extra_tokens else -1
    if at < 0:
        return text
    try:
        rest = text[at + len(_KEY) :].decode()
        start = rest.index(":") + 1
        start += len(rest[start:]) - len(rest[start:].lstrip())
        usage, end = json.JSONDecoder().raw_decode(rest, start)
    except (ValueError, RecursionError):
        return text
    if not isinstance(usage, dict):
        return text
    edited = json.dumps({**usage, **_raised_counts(usage, extra_tokens)}, ensure_ascii=False)
    return text[: at + len(_KEY)] + (rest[:start] + edited + rest[end:]).encode()


def _raised_counts(usage: Mapping[str, Any], extra_tokens: int) -> dict[str, int]:
    """The counts of a usage that include the prompt, each raised; none gets negative."""
    counts = {key: usage[key] for key in _COUNTS if isinstance(usage.get(key), int)}
    return {key: max(count + extra_tokens, 0) for key, count in counts.items()}
