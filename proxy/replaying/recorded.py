"""Recorded conversations from a file: JSON or JSON lines, with or without gzip.

A conversation is an object with `messages` (and `tools`, and `qa` with evidence), or a bare list of messages. A file
holds one conversation, a list of them, or one a line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GZIP = b"\x1f\x8b"

Message = Mapping[str, Any]


class Unreadable(Exception):
    """A file that holds no conversations; the message says where it went wrong."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said; `evidence` are, for each question about it, the indices of the messages that answer it."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[Any] = ()
    evidence: Sequence[Sequence[int]] = ()


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
    """Each conversation's JSON with where it stands."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield from _lines(text, path, error)
        return
    if isinstance(whole, list) and whole and not _is_message(whole[0]):
        yield from ((f"{path}: conversation {number}", each) for number, each in enumerate(whole, 1))
    elif whole != []:
        yield str(path), whole


def _lines(text: str, path: Path, problem: Exception) -> Iterator[tuple[str, Any]]:
    """JSON lines; where not even the first one is JSON, the problem of the whole text says more."""
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
        evidence=list(_evidence(found.get("qa"), len(messages))),
    )


def _evidence(questions: Any, count: int) -> Iterator[Sequence[int]]:
    for question in questions if isinstance(questions, list) else ():
        places = question.get("evidence") if isinstance(question, Mapping) else None
        if isinstance(places, list) and places and all(isinstance(i, int) and 0 <= i < count for i in places):
            yield places
