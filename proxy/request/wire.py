"""The request body: read where each member stands, so that what is not changed keeps its bytes.

A scan (`proxy/request/envelope.py`) gives every member's value and its place in the text; and since only spans are
replaced, nothing that we do not touch is ever written again. A changed body differs inside `messages`, by the removed
`condenser` member, and in the value of `model` where it carried a suffix.

Messages are most of a body, and most of them came with the request before. So where it is told what was `seen`, the
array of messages is read apart, by comparing bytes, and only the rest around it is scanned (`Hole`), once for all
requests that have it alike. What cannot be read in this way, for what reason ever, is read as a whole: that alone
decides what is refused, and how it is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.request.envelope import TOO_DEEP, Envelope, Member, check_depth, skip
from proxy.request.message_cache import Element, MessageCache, Span, are_text
from proxy.request.nesting import DEEPEST

_MESSAGES = re.compile(rb'"messages"[ \t\n\r]*:[ \t\n\r]*\[[ \t\n\r]*')
EXTENSION = "condenser"


class Hole(NamedTuple):
    """What was left out of a body's text: [start, end) of its bytes, just before the end of the array of messages."""

    start: int
    end: int


@dataclass(frozen=True)
class Body:
    """A chat completion request as it came in.

    The text of `envelope` is that of `data`, without the messages where they were read apart (`hole`). `alone` are
    those of its `elements` that were not found by one of the `spans`.
    """

    data: bytes
    envelope: Envelope
    elements: Sequence[Element]
    alone: Sequence[Element]
    spans: Sequence[Span] = ()
    hole: Hole | None = None
    supplied: int = 0

    @property
    def size(self) -> int:
        """Bytes of the request, with those of the messages that were supplied in append mode."""
        return len(self.data) + self.supplied

    @property
    def members(self) -> Mapping[str, Member]:
        """The members, each with its place in the text of `envelope`."""
        return self.envelope.members

    @cached_property
    def is_text(self) -> bool:
        """Whether no message has anything whose tokens its bytes do not bound, such as a picture."""
        return are_text(self.spans) and are_text(self.alone)

    def with_history(self, elements: Sequence[Element]) -> Body:
        """The same request with all `elements` as its messages."""
        supplied = sum(len(each.data) for each in elements)
        return replace(self, elements=elements, alone=elements, spans=(), supplied=supplied)

    def get(self, key: str) -> Any:
        """The parsed value of a member, or None; not for `messages`."""
        return self.envelope.values.get(key)

    @property
    def values(self) -> Mapping[str, Any]:
        """All members but the messages."""
        return self.envelope.values

    def written(self, key: str) -> str:
        """The text of a member's value as it came in, or ""; not for `messages`."""
        return self.envelope.written(key)

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
            at = self.members["messages"].end - 1
            edits.append((at, at, self.data[self.hole.start : self.hole.end]))
        return _edited(self.envelope.text, edits)

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
        member, text = self.members[key], self.envelope.text
        after = skip(text, member.end)
        if text[after] == ",":
            return member.start, skip(text, after + 1)
        before = text.rfind(",", 0, member.start)
        is_first = before < 0 or skip(text, before + 1) < member.start
        return (member.start if is_first else before), member.end


def read(data: bytes, seen: MessageCache | None = None) -> Body:
    """Reads a body, of what was `seen` before nothing again; raises `BadRequest` that says what is wrong and where."""
    if seen is not None:
        try:
            body = _read_apart(data, seen)
        except (ValueError, RecursionError, BadRequest):
            body = None  # reading the whole says what is wrong, or that nothing is
        if body is not None:
            return body
    return _read_whole(data)


def _read_apart(data: bytes, seen: MessageCache) -> Body | None:
    """The body, its messages read by themselves; None where they are not what stands at the first `"messages":[`."""
    opening = _MESSAGES.search(data)
    if opening is None:
        return None
    start = opening.end()
    elements, alone, spans, end = seen.run(data, start)
    envelope = seen.envelopes.around(data[:start], data[end:])
    return None if envelope is None else Body(data, envelope, elements, alone, spans, Hole(start, end))


def _read_whole(data: bytes) -> Body:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body is not valid UTF-8 (byte {error.start}).") from None
    try:
        envelope = Envelope.of(text)
        elements = _elements(envelope.members)
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    check_depth(envelope.values.values(), DEEPEST)
    check_depth([each.value for each in elements], DEEPEST - 1)
    return Body(data, envelope, elements, elements)


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


def _edited(text: str, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    parts: list[bytes] = []
    done = 0
    for start, end, new in sorted(edits):
        parts += (text[done:start].encode(), new)
        done = end
    parts.append(text[done:].encode())
    return b"".join(parts)
