"""Reads and writes server-sent events without I/O: bytes in, the data of complete events out.

Lines may end in CR, LF or both, and a chunk may end anywhere, even inside a line end or a character. Only `data` lines
are read, and joined by line feeds; comments and other fields are skipped.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator

MAX_EVENT = 4 * 1024 * 1024  # the bytes of an event that are held in order to edit it
DONE = b"data: [DONE]\n\n"
# The lookbehind makes a match begin at the start of a line; otherwise an unfinished line is searched from each byte.
_LINE = re.compile(rb"(?<![^\r\n])[^\r\n]*+(?:\r\n|\n|\r(?!\Z))")
_END = re.compile(rb"[\r\n]")


class LineSplitter:
    """Splits chunks into lines. An unfinished line is kept in pieces, and searched again only if it may have ended."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # the chunks of the unfinished line
        self.size = 0  # of these chunks, in bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, with their line ends."""
        if not chunk:
            return []
        may_have_ended = bool(self._rest) and self._rest[-1].endswith(b"\r")
        self._rest.append(chunk)
        self.size += len(chunk)
        if not (may_have_ended or _END.search(chunk)):
            return []
        text = self.take_rest()
        lines: list[bytes] = _LINE.findall(text)
        if unfinished := text[sum(map(len, lines)) :]:
            self._rest.append(unfinished)
            self.size = len(unfinished)
        return lines

    def take_rest(self) -> bytes:
        """Removes and returns the unfinished line."""
        rest, self._rest, self.size = b"".join(self._rest), [], 0
        return rest


class Events:
    """Splits bytes into complete events. A comment between events is an event of its own."""

    def __init__(self) -> None:
        self._cut = LineSplitter()
        self._lines: list[bytes] = []
        self._size = 0  # of these lines, in bytes

    @property
    def size(self) -> int:
        """The number of bytes of the event that is not complete."""
        return self._size + self._cut.size

    def feed(self, chunk: bytes) -> Iterator[list[bytes]]:
        """The lines of each event that ends in this chunk, with their line ends."""
        for line in self._cut.feed(chunk):
            self._lines.append(line)
            self._size += len(line)
            is_comment = len(self._lines) == 1 and line.startswith(b":")
            if is_comment or not line.strip(b"\r\n"):
                lines, self._lines, self._size = self._lines, [], 0
                yield lines

    def rest(self) -> bytes:
        """The bytes of an event that is not complete."""
        rest, self._lines, self._size = b"".join([*self._lines, self._cut.take_rest()]), [], 0
        return rest


class EventEditor(ABC):
    """Changes a stream on its way: bytes in, bytes out. An event of more than `MAX_EVENT` bytes passes as it comes."""

    _passes = False  # whether the bytes up to the next line end belong to an event that was too long

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client when a chunk comes."""
        if self._passes:
            if (end := _END.search(chunk)) is None:
                return chunk
            self._passes = False
            return chunk[: end.end()] + self.feed(chunk[end.end() :])
        edited = self._edit(chunk)
        if self._held_bytes() <= MAX_EVENT:
            return edited
        self._passes = True
        return edited + self._release()

    @abstractmethod
    def _edit(self, chunk: bytes) -> bytes:
        """The bytes of a chunk, and of what was held, that need not be held any longer."""

    @abstractmethod
    def _held_bytes(self) -> int:
        """The number of bytes that are held."""

    @abstractmethod
    def _release(self) -> bytes:
        """Gives up what is held, unchanged."""


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
