"""The usage that a client is shown. Pure: bytes of a reply in, bytes for the client out.

A client that compacts its history by `usage` sees, by default, what was forwarded. It may be shown instead what its own
list would have cost: then what was left out is added to the prompt's tokens, once, in the one usage that a reply has.
And where we asked for a stream's usage that the client has not asked for, its event is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from proxy.http.headers import Headers, first
from proxy.http.sse import EventReader, Lines
from proxy.request.loose_json import json_or_none

_KEY = b'"usage"'
_COUNTS = ("prompt_tokens", "input_tokens", "total_tokens")


class Editor(Protocol):
    """Changes a reply on its way."""

    def feed(self, chunk: bytes) -> bytes:
        """What may be passed on, now that a chunk has come."""
        ...

    def end(self) -> bytes:
        """What is left when all has come."""
        ...


class WholeEditor:
    """A reply in one piece: its usage says `more` prompt tokens. It is passed on when it has ended."""

    def __init__(self, more: int) -> None:
        self._more = more
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """Keeps a chunk; nothing is passed on yet."""
        self._parts.append(chunk)
        return b""

    def end(self) -> bytes:
        """The whole reply."""
        body = b"".join(self._parts)
        self._parts.clear()
        return with_more(body, self._more)


class StreamEditor:
    """A reply in events: a usage says `more` prompt tokens, or its event is left out where it `hides` it.

    Whole lines are passed on, an event that has a usage as soon as it has ended.
    """

    def __init__(self, more: int, *, hides: bool) -> None:
        self._more = more
        self._hides = hides
        self._lines = Lines()
        self._event: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        """The lines that have ended with this chunk, but for those of an event with a usage that has not."""
        return b"".join([self._line(line) for line in self._lines.feed(chunk)])

    def _line(self, line: bytes) -> bytes:
        if self._event or (line.startswith(b"data:") and _KEY in line):
            self._event.append(line)
            return self._ended() if not line.strip() else b""
        return line

    def _ended(self) -> bytes:
        event, self._event = b"".join(self._event), []
        return b"" if self._hides and is_usage_alone(event) else with_more(event, self._more)

    def end(self) -> bytes:
        """What had no end."""
        rest, self._event = b"".join([*self._event, self._lines.rest()]), []
        return rest


def editor_for(headers: Headers, more: int, *, hides: bool) -> Editor | None:
    """What edits a reply with these headers; None where nothing is to be changed, or it is not in plain text."""
    if not (more or hides) or first(headers, b"content-encoding") not in (None, "identity"):
        return None
    if (first(headers, b"content-type") or "").startswith("text/event-stream"):
        return StreamEditor(more, hides=hides)
    return WholeEditor(more) if more else None


def is_usage_alone(event: bytes) -> bool:
    """Whether an event has a usage and no choice: the one that `include_usage` asks for."""
    for data in EventReader().feed(event):
        value = json_or_none(data)
        return isinstance(value, Mapping) and value.get("choices") == [] and isinstance(value.get("usage"), Mapping)
    return False


def with_more(text: bytes, more: int) -> bytes:
    """A body or an event whose last usage says `more` prompt tokens; all else keeps its bytes."""
    at = text.rfind(_KEY) if more else -1
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
    raised = json.dumps({**usage, **_raised(usage, more)}, ensure_ascii=False)
    return text[: at + len(_KEY)] + (rest[:start] + raised + rest[end:]).encode()


def _raised(usage: Mapping[str, Any], more: int) -> dict[str, int]:
    counts = {key: usage[key] for key in _COUNTS if isinstance(usage.get(key), int)}
    return {key: max(count + more, 0) for key, count in counts.items()}
