"""The request body: read where each member stands, so that what is not changed keeps its bytes.

A scan with the standard library's decoder gives every member's value and its place in the text. Its numbers have no
limit, it keeps lone surrogates and the order of keys; and since only spans are replaced, nothing that we do not
touch is ever written again. A changed body differs inside `messages`, by the removed `condenser` member, and in
the value of `model` where it carried a suffix.

Messages are most of a body, and most of them came with the request before. So where it is told what was `seen`, the
array of messages is read apart, by comparing bytes, and only the rest around it is scanned (`Hole`). What cannot be
read in this way, for what reason ever, is read as a whole: that alone decides what is refused, and how it is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.nesting import DEEPEST, is_deeper
from proxy.seen import Element, Seen
from strategies.core.parsing import decode

_SPACE = re.compile(r"[ \t\n\r]*")
_MESSAGES = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*')
_IS_TEXT = attrgetter("is_text")
_READ_ONCE = ("messages", "model", "condenser")
EXTENSION = "condenser"


class Member(NamedTuple):
    """A member of the body: [start, end) from its key to its value's end, `at` where the value starts."""

    key: str
    value: Any
    start: int
    at: int
    end: int


class Hole(NamedTuple):
    """What was left out of a body's text: [start, end) of its bytes, at the character `at`."""

    start: int
    end: int
    at: int


@dataclass(frozen=True)
class Body:
    """A chat completion request as it came in.

    `text` is that of `data`, without the messages where they were read apart (`hole`); members stand in `text`.
    """

    data: bytes
    text: str
    members: Mapping[str, Member]
    elements: Sequence[Element]
    hole: Hole | None = None
    supplied: int = 0

    @property
    def size(self) -> int:
        """Bytes of the request, with those of the messages that were supplied in append mode."""
        return len(self.data) + self.supplied

    @cached_property
    def is_text(self) -> bool:
        """Whether no message has anything whose tokens its bytes do not bound, such as a picture."""
        return False not in map(_IS_TEXT, self.elements)

    def with_history(self, elements: Sequence[Element]) -> Body:
        """The same request with all `elements` as its messages."""
        supplied = sum(len(each.data) for each in elements)
        return replace(self, elements=elements, supplied=supplied)

    def get(self, key: str) -> Any:
        """The parsed value of a member, or None."""
        member = self.members.get(key)
        return None if member is None else member.value

    @property
    def values(self) -> dict[str, Any]:
        """All members but the messages."""
        return {key: member.value for key, member in self.members.items() if key != "messages"}

    def written(self, key: str) -> str:
        """The text of a member's value as it came in, or ""; not for `messages`."""
        member = self.members.get(key)
        return "" if member is None else self.text[member.at : member.end]

    def tools_with(self, tool: str) -> str:
        """The text of `tools` with one more; those that are there keep their bytes."""
        return f"{self.written('tools')[:-1]},{tool}]" if self.get("tools") else f"[{tool}]"

    def spliced(
        self, *, messages: bytes | None = None, model: str | None = None, members: Mapping[str, str] | None = None
    ) -> bytes:
        """The bytes to forward: `messages` and `model` replaced where given, the extension removed.

        `members` are other members with their text; those that are not there come last.
        """
        edits = [self._setting(key, text) for key, text in (members or {}).items()]
        if messages is not None:
            edits.append((*self._span("messages"), messages))
        if model is not None:
            edits.append((*self._span("model"), json.dumps(model).encode()))
        if EXTENSION in self.members:
            edits.append((*self._removal(EXTENSION), b""))
        if not edits:
            return self.data
        if self.hole is not None and messages is None:
            edits.append((self.hole.at, self.hole.at, self.data[self.hole.start : self.hole.end]))
        return _edited(self.text, edits)

    def _setting(self, key: str, text: str) -> tuple[int, int, bytes]:
        """The edit that gives a member a value."""
        if key in self.members:
            return (*self._span(key), text.encode())
        end = max(member.end for member in self.members.values())
        return end, end, f",{json.dumps(key)}:{text}".encode()

    def _span(self, key: str) -> tuple[int, int]:
        member = self.members[key]
        return member.at, member.end

    def _removal(self, key: str) -> tuple[int, int]:
        """The member with the comma that its going makes idle."""
        member = self.members[key]
        after = _skip(self.text, member.end)
        if self.text[after] == ",":
            return member.start, _skip(self.text, after + 1)
        before = self.text.rfind(",", 0, member.start)
        is_first = before < 0 or _skip(self.text, before + 1) < member.start
        return (member.start if is_first else before), member.end


def read(data: bytes, seen: Seen | None = None) -> Body:
    """Reads a body, of what was `seen` before nothing again; raises `BadRequest` that says what is wrong and where."""
    if seen is not None:
        try:
            body = _read_apart(data, seen)
        except (ValueError, RecursionError, BadRequest):
            body = None  # reading the whole says what is wrong, or that nothing is
        if body is not None:
            return body
    return _read_whole(data)


def _read_apart(data: bytes, seen: Seen) -> Body | None:
    """The body, its messages read by themselves; None where they are not what stands at the first `"messages":[`."""
    opening = _MESSAGES.search(data)
    if opening is None:
        return None
    start = opening.end()
    elements, end = seen.run(data, start)
    before = data[:start].decode()
    text = before + data[end:].decode()
    members = _members(text)
    _check_depth(members, ())
    messages = members.get("messages")
    if messages is None or messages.value != [] or messages.end != len(before) + 1:
        return None
    return Body(data, text, members, elements, Hole(start, end, len(before)))


def _read_whole(data: bytes) -> Body:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {error.start}).") from None
    try:
        members = _members(text)
        elements = _elements(members)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    _check_depth(members, (each.value for each in elements))
    return Body(data, text, members, elements)


def _check_depth(members: Mapping[str, Member], messages: Iterable[Any]) -> None:
    """Raises `BadRequest` for a value that the recursion of any later reader could not stand."""
    others = [member.value for key, member in members.items() if key != "messages"]
    if is_deeper(others, DEEPEST) or is_deeper(messages, DEEPEST - 1):
        raise BadRequest("The request body is nested too deeply.")


def _members(text: str) -> dict[str, Member]:
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        decode(text, at)
        raise BadRequest("The request body must be a JSON object.")
    members: dict[str, Member] = {}
    for member in _object(text, at):
        if member.key in members and member.key in _READ_ONCE:
            raise BadRequest(f"The member '{member.key}' stands twice in the request body.", param=member.key)
        members[member.key] = member
    return members


def _object(text: str, at: int) -> Iterator[Member]:
    end = _skip(text, at + 1)
    if text[end : end + 1] == "}":
        return _check_end(text, end + 1)
    while True:
        start = end
        key, end = decode(text, start)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string (character {start})")  # noqa: TRY004
        end = _expect(text, end, ":")
        value, stop = _array(text, end) if key == "messages" and text[end : end + 1] == "[" else decode(text, end)
        yield Member(key, value, start, end, stop)
        end = _skip(text, stop)
        if text[end : end + 1] == "}":
            return _check_end(text, end + 1)
        end = _expect(text, end, ",")


def _check_end(text: str, at: int) -> None:
    end = _skip(text, at)
    if end != len(text):
        raise ValueError(f"something follows the object (character {end})")


def _expect(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"'{mark}' is missing (character {at})")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _elements(members: Mapping[str, Member]) -> list[Element]:
    member = members.get("messages")
    if member is None:
        raise BadRequest("The request body has no 'messages'.", param="messages")
    if not isinstance(member.value, list):
        raise BadRequest("'messages' must be an array of messages.", param="messages")
    if not member.value:
        raise BadRequest("'messages' must not be empty.", param="messages")
    for i, (value, _) in enumerate(member.value):
        if not isinstance(value, dict):
            raise BadRequest(f"messages[{i}] must be an object.", param=f"messages[{i}]")
        if not isinstance(value.get("role"), str):
            raise BadRequest(f"messages[{i}] has no 'role', or one that is no string.", param=f"messages[{i}].role")
    return [Element(text.encode(), value) for value, text in member.value]


def _array(text: str, at: int) -> tuple[list[tuple[Any, str]], int]:
    """The elements of the array at `at`, each with its text, and where the array ends."""
    elements: list[tuple[Any, str]] = []
    end = _skip(text, at + 1)
    if text[end : end + 1] == "]":
        return elements, end + 1
    while True:
        value, stop = decode(text, end)
        elements.append((value, text[end:stop]))
        end = _skip(text, stop)
        if text[end : end + 1] == "]":
            return elements, end + 1
        end = _expect(text, end, ",")


def _edited(text: str, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for start, end, new in sorted(edits):
        parts += (text[done:start].encode(), new)
        done = end
    parts.append(text[done:].encode())
    return b"".join(parts)
