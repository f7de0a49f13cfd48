"""Server-sent events, sans I/O: bytes in, the data of whole events out; and how one is written.

Lines may end in CR, LF or both, and a chunk may end anywhere, also inside a line end or a character. Only what
chat completions use is read: `data` lines, joined by line feeds; comments and other fields are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from proxy.headers import Headers, first

DONE = b"data: [DONE]\n\n"
_LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r(?!\Z))")


class EventReader:
    """Reads one stream; `feed` gives the data of the events that a chunk completes."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that ends in this chunk."""
        buffered = self._rest + chunk
        done = 0
        for found in _LINE.finditer(buffered):
            done = found.end()
            yield from self._line(found.group(1))
        self._rest = buffered[done:]

    def _line(self, line: bytes) -> Iterator[str]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            yield data.decode("utf-8", "replace")


def event(data: bytes) -> bytes:
    """An event with this data, which is one line."""
    return b"data: " + data + b"\n\n"


def is_event_stream(headers: Headers) -> bool:
    """Whether a reply with these headers comes in events."""
    return (first(headers, b"content-type") or "").startswith("text/event-stream")
