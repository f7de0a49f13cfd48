"""The request body: read where each member stands, so that what is not changed keeps its bytes.

A scan with the standard library's decoder gives every member's value and its place in the text. Its numbers have no
limit, it keeps lone surrogates and the order of keys; and since only spans are replaced, nothing that we do not
touch is ever written again. A changed body differs inside `messages`, by the removed `condenser` member, and in
the value of `model` where it carried a suffix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from proxy.errors import BadRequest

_DECODE = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")
_READ_ONCE = ("messages", "model", "condenser")
EXTENSION = "condenser"
DEEPEST = 256


class Member(NamedTuple):
    """A member of the body: [start, end) from its key to its value's end, `at` where the value starts."""

    key: str
    value: Any
    start: int
    at: int
    end: int


class Element(NamedTuple):
    """One element of `messages` and its text."""

    value: Any
    raw: str


@dataclass(frozen=True)
class Body:
    """A chat completion request as it came in."""

    data: bytes
    text: str
    members: Mapping[str, Member]
    elements: Sequence[Element]
    supplied: int = 0

    @property
    def size(self) -> int:
        """Bytes of the request, with those of the messages that were supplied in append mode."""
        return len(self.data) + self.supplied

    def with_history(self, elements: Sequence[Element]) -> Body:
        """The same request with all `elements` as its messages."""
        supplied = sum(len(each.raw.encode("utf-8", "surrogatepass")) for each in elements)
        return replace(self, elements=elements, supplied=supplied)

    def get(self, key: str) -> Any:
        """The parsed value of a member, or None."""
        member = self.members.get(key)
        return None if member is None else member.value

    @property
    def values(self) -> dict[str, Any]:
        """All members but the messages."""
        return {key: member.value for key, member in self.members.items() if key != "messages"}

    def spliced(self, *, messages: str | None = None, model: str | None = None) -> bytes:
        """The bytes to forward: `messages` and `model` replaced where given, the extension removed."""
        edits: list[tuple[int, int, str]] = []
        if messages is not None:
            edits.append((*self._span("messages"), messages))
        if model is not None:
            edits.append((*self._span("model"), json.dumps(model)))
        if EXTENSION in self.members:
            edits.append((*self._removal(EXTENSION), ""))
        return _edited(self.text, edits) if edits else self.data

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


def read(data: bytes) -> Body:
    """Reads a body; raises `BadRequest` that says what is wrong and where."""
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
    _check_depth(members)
    return Body(data, text, members, elements)


def _check_depth(members: Mapping[str, Member]) -> None:
    """Raises `BadRequest` for a value that the recursion of any later reader could not stand."""
    level: list[Any] = [member.value for member in members.values()]
    for _ in range(DEEPEST):
        level = [inner for outer in level if isinstance(outer, (dict, list)) for inner in _inside(outer)]
        if not level:
            return
    raise BadRequest("The request body is nested too deeply.")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else (e.value if isinstance(e, Element) else e for e in value)


def _members(text: str) -> dict[str, Member]:
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        _DECODE(text, at)
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
        key, end = _DECODE(text, start)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string (character {start})")  # noqa: TRY004
        end = _expect(text, end, ":")
        value, stop = _array(text, end) if key == "messages" and text[end : end + 1] == "[" else _DECODE(text, end)
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
    for i, element in enumerate(member.value):
        if not isinstance(element.value, dict):
            raise BadRequest(f"messages[{i}] must be an object.", param=f"messages[{i}]")
        if not isinstance(element.value.get("role"), str):
            raise BadRequest(f"messages[{i}] has no 'role', or one that is no string.", param=f"messages[{i}].role")
    return list(member.value)


def _array(text: str, at: int) -> tuple[list[Element], int]:
    """The elements of the array at `at`, each with its text, and where the array ends."""
    elements: list[Element] = []
    end = _skip(text, at + 1)
    if text[end : end + 1] == "]":
        return elements, end + 1
    while True:
        value, stop = _DECODE(text, end)
        elements.append(Element(value, text[end:stop]))
        end = _skip(text, stop)
        if text[end : end + 1] == "]":
            return elements, end + 1
        end = _expect(text, end, ",")


def _edited(text: str, edits: Sequence[tuple[int, int, str]]) -> bytes:
    parts: list[str] = []
    done = 0
    for start, end, new in sorted(edits):
        parts += (text[done:start], new)
        done = end
    parts.append(text[done:])
    return "".join(parts).encode()
