"""Reads recorded conversations from a file: JSON or JSON lines, with or without gzip.

A conversation is an object with `messages` (and `tools`, and `qa` with evidence), or a bare list of messages. A file
holds one conversation, a list of them, or one per line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strategies.dialects.chat import content_text

_GZIP = b"\x1f\x8b"

Message = Mapping[str, Any]


class Unreadable(Exception):
    """A file cannot be read as conversations; the message says where the problem is."""


class Question(NamedTuple):
    """A question, the texts that together answer it, and the indices of the messages that hold these texts."""

    text: str
    evidence: Sequence[str]
    places: Sequence[int]

    def reaches(self, view: str) -> bool:
        """Whether a view holds all the evidence word for word."""
        return all(text in view for text in self.evidence)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation, the tools that were offered in it, and questions about it."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[Any] = ()
    questions: Sequence[Question] = ()
    language: str = ""


def load(path: Path, limit: int | None = None) -> list[Conversation]:
    """The first `limit` conversations of a file; raises `Unreadable`."""
    documents = list(_documents(_text(path), path))
    if not documents:
        raise Unreadable(f"{path}: holds no conversation")
    return [_conversation(place, document) for place, document in documents[:limit]]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unreadable(f"{path}: the gzip data is broken: {error}") from None
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None


def _documents(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the JSON of each conversation, with its place in the file for error messages."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield from _lines(text, path, error)
        return
    if isinstance(document, list) and document and not _is_message(document[0]):
        yield from ((f"{path}: conversation {number}", found) for number, found in enumerate(document, 1))
    elif document != []:
        yield str(path), document


def _lines(text: str, path: Path, problem: Exception) -> Iterator[tuple[str, Any]]:
    """Yields JSON lines. If not even the first line is JSON, the error of the whole text (`problem`) says more."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            yield f"{path}: line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            said = problem if number == lines[0][0] else error
            raise Unreadable(f"{path}: line {number}: is not JSON: {said}") from None


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value


def _conversation(place: str, document: Any) -> Conversation:
    found: Any = {"messages": document} if isinstance(document, list) else document
    if not isinstance(found, Mapping) or not isinstance(found.get("messages"), list):
        raise Unreadable(f"{place}: is neither a list of messages nor an object with 'messages'")
    messages = found["messages"]
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise Unreadable(f"{place}: messages[{i}] is no object with a 'role'")
    return Conversation(
        id=str(found.get("id") or place),
        messages=messages,
        tools=found["tools"] if isinstance(found.get("tools"), list) else (),
        questions=list(_questions(found.get("qa"), messages)),
        language=str(found.get("lang") or ""),
    )


def _questions(found: Any, messages: Sequence[Message]) -> Iterator[Question]:
    for asked in found if isinstance(found, list) else ():
        places = asked.get("evidence") if isinstance(asked, Mapping) else None
        if isinstance(places, list) and places and all(isinstance(i, int) and 0 <= i < len(messages) for i in places):
            evidence = [content_text(messages[i].get("content")) for i in places]
            yield Question(str(asked.get("question") or ""), evidence, places)
