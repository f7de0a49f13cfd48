"""Server-sent events, sans I/O: bytes in, the data of whole events out; and how one is written.

Lines may end in CR, LF or both, and a chunk may end anywhere, also inside a line end or a character. Only what
chat completions use is read: `data` lines, joined by line feeds; comments and other fields are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from proxy.http.headers import Headers, first

DONE = b"data: [DONE]\n\n"
# A line is looked for from its beginning only: one that has not ended would be tried from each of its bytes.
_LINE = re.compile(rb"(?<![^\r\n])[^\r\n]*+(?:\r\n|\n|\r(?!\Z))")
_END = re.compile(rb"[\r\n]")


class Lines:
    """Cuts bytes into lines; what has not ended is kept in pieces, and looked at again only when it may have."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, with their ends."""
        if not chunk:
            return []
        may_have_ended = bool(self._rest) and self._rest[-1].endswith(b"\r")
        self._rest.append(chunk)
        if not (may_have_ended or _END.search(chunk)):
            return []
        text = self.rest()
        lines: list[bytes] = _LINE.findall(text)
        if left := text[sum(map(len, lines)) :]:
            self._rest.append(left)
        return lines

    def rest(self) -> bytes:
        """What has not ended, which is forgotten."""
        rest, self._rest = b"".join(self._rest), []
        return rest


class EventReader:
    """Reads one stream; `feed` gives the data of the events that a chunk completes."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of each event that ends in this chunk."""
        for line in self._lines.feed(chunk):
            yield from self._line(line.rstrip(b"\r\n"))

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
