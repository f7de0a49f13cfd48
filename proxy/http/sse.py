"""Reads and writes server-sent events without I/O: bytes in, the data of complete events out.

Lines may end in CR, LF or both, and a chunk may end anywhere, even inside a line end or a character. Only `data` lines
are read, and joined by line feeds; comments and other fields are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

DONE = b"data: [DONE]\n\n"
# The lookbehind makes a match begin at the start of a line; otherwise an unfinished line is searched from each byte.
_LINE = re.compile(rb"(?<![^\r\n])[^\r\n]*+(?:\r\n|\n|\r(?!\Z))")
_END = re.compile(rb"[\r\n]")


class LineSplitter:
    """Splits chunks into lines. An unfinished line is kept in pieces, and searched again only if it may have ended."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the chunks of the unfinished line

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, with their line ends."""
        if not chunk:
            return []
        may_have_ended = bool(self._rest) and self._rest[-1].endswith(b"\r")
        self._rest.append(chunk)
        if not (may_have_ended or _END.search(chunk)):
            return []
        text = self.take_rest()
        lines: list[bytes] = _LINE.findall(text)
        if unfinished := text[sum(map(len, lines)) :]:
            self._rest.append(unfinished)
        return lines

    def take_rest(self) -> bytes:
        """Removes and returns the unfinished line."""
        rest, self._rest = b"".join(self._rest), []
        return rest


class Events:
    """Splits bytes into complete events. A comment between events is an event of its own."""

    def __init__(self) -> None:
        self._cut = LineSplitter()
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[list[bytes]]:
        """The lines of each event that ends in this chunk, with their line ends."""
        for line in self._cut.feed(chunk):
            self._lines.append(line)
            is_comment = len(self._lines) == 1 and line.startswith(b":")
            if is_comment or not line.strip(b"\r\n"):
                lines, self._lines = self._lines, []
                yield lines

    def rest(self) -> bytes:
        """The bytes of an event that is not complete."""
        rest, self._lines = b"".join([*self._lines, self._cut.take_rest()]), []
        return rest


class EventReader:
    """Reads the data of one stream's events."""

    def __init__(self) -> None:
        self._events = Events()

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yields the data of each event that ends in this chunk; an event without data is skipped."""
        for lines in self._events.feed(chunk):
            if data := data_of(lines):
                yield data.decode("utf-8", "replace")


def data_of(lines: list[bytes]) -> bytes:
    """The data of an event, given its lines."""
    return b"\n".join(line[5:].strip(b"\r\n").removeprefix(b" ") for line in lines if line.startswith(b"data:"))


def event(data: bytes) -> bytes:
    """An event with this data, which must be one line."""
    return b"data: " + data + b"\n\n"


def between_events(sent: bytes) -> bytes:
    """The bytes that must follow the bytes `sent` before a new event can begin; these may end inside an event."""
    return b"" if not sent or sent.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) else b"\n\n"
