"""Joins several event streams of an upstream into one stream for the client: bytes in, bytes out. Pure.

A model that searches answers in several replies; the client sees one. Events pass as they come, byte for byte where
nothing in them must change. The deltas of hidden calls are held back, and so is the end of a reply that another one
follows: its finish reason, its usage, its `[DONE]`. The next reply goes on under the id, the time and the model of the
first one, without the role; the last usage counts the completion tokens of all of them.

The driver calls `feed` with a reply's bytes. When the reply `is_over` and `is_continued`, it asks the upstream again
and calls `begin`. If a later reply fails before the client has anything of it, its error is held back as
`failed_event`, and the driver asks for another reply in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.chat.loose_json import json_or_none
from proxy.http.sse import LineSplitter
from proxy.overflow.reading import is_error_body
from proxy.searching.deltas import Choice
from proxy.searching.reply_choice import FirstChoice, usage_for_client
from strategies.core.messages import dump

_DONE = b"[DONE]"
_IDENTITY = ("id", "created", "model")


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
        """The bytes of an event that the stream has broken off."""
        rest, self._lines = b"".join([*self._lines, self._cut.take_rest()]), []
        return rest


class Splicer:
    """Joins replies into one stream. `runs_calls` says whether the hidden calls of the first one are run."""

    def __init__(self, *, runs_calls: bool) -> None:
        self._runs_calls = runs_calls
        self._replaceable = False
        self._identity: dict[str, Any] | None = None
        self._earlier: list[FirstChoice] = []
        self._roles: set[int] = set()
        self._reset()

    def _reset(self) -> None:
        self._events = Events()
        self._choices: dict[int, Choice] = {}
        self._usage: Mapping[str, Any] | None = None
        self._failed = False
        self._has_sent = False
        self.is_over = False
        self.failed_event = b""

    def begin(self, *, runs_calls: bool, replaceable: bool = True) -> None:
        """Goes on with another reply; `replaceable` says whether one more may take its place if it fails."""
        self._earlier.append(self.first_choice)
        self._runs_calls, self._replaceable = runs_calls, replaceable
        self._reset()

    @property
    def first_choice(self) -> FirstChoice:
        """The reply's first choice, as far as it has come."""
        choice = self._choices.get(0) or Choice()
        return FirstChoice(choice.message, choice.finish, self._usage)

    @property
    def has_sent_text(self) -> bool:
        """Whether the client has got text of the answer."""
        return any(each.text for each in (*self._earlier, self.first_choice))

    @property
    def is_replaceable(self) -> bool:
        """Whether another reply may take the place of this one: the client has nothing of it."""
        return self._replaceable and not self._has_sent

    @property
    def is_unanswered(self) -> bool:
        """Whether this reply could be replaced, and the client has no text of the ones before it either."""
        return self.is_replaceable and not self.has_sent_text

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        choice = self._choices.get(0)
        ended = choice is not None and (self.is_over or choice.finish is not None)
        return ended and self._runs_calls and not self._failed and self.first_choice.calls_memory

    @property
    def is_continued(self) -> bool:
        """Whether the upstream is to be asked again: the model called only the memory tool."""
        return self.has_searches and not self.first_choice.has_client_calls

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client when a chunk of a reply comes."""
        return b"".join([self._pass_event(lines) for lines in self._events.feed(chunk)])

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: the rest of its last event, unchanged."""
        rest = self._events.rest()
        return b"" if self.is_continued else rest

    def _pass_event(self, lines: list[bytes]) -> bytes:
        if self.is_replaceable and is_error_body(event := b"".join(lines)):
            self.failed_event = event
        if self.failed_event:
            return b""
        data = b"\n".join(line[5:].strip(b"\r\n").removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        if data == _DONE:
            self.is_over = True
            return b"" if self.is_continued else b"".join(lines)
        body = _json_object(data)
        if body is None:
            return b"".join(lines)
        passed = self._pass_chunk(body)
        if passed is None:
            return b""
        return b"".join(lines) if passed == body else _rewritten(lines, passed)

    def _pass_chunk(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk as the client gets it; None if it gets nothing of it."""
        self._failed = self._failed or bool(body.get("error"))
        chunk = {**body, **self._identity_after(body)}
        if isinstance(body.get("usage"), Mapping):
            self._usage = body["usage"]
        choices = body.get("choices")
        if isinstance(choices, list) and choices and all(map(_is_choice, choices)):
            chunk["choices"] = [each for choice in choices if (each := self._pass_choice(choice)) is not None]
            if not chunk["choices"]:
                return None
        elif self.is_continued:
            return None
        return self._with_usage(chunk)

    def _identity_after(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """For a later reply, the id, time and model of the first chunk that had a choice."""
        if self._identity is None and body.get("choices"):
            self._identity = {key: body[key] for key in _IDENTITY if key in body}
        return self._identity or {} if self._earlier and not self._failed else {}

    def _pass_choice(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        index = choice.get("index") or 0
        kept = self._choices.get(index)
        if kept is None:
            has_text = any(each.text for each in self._earlier)
            kept = self._choices[index] = Choice(self._runs_calls, index in self._roles, has_text)
        if "role" in (choice.get("delta") or {}):
            self._roles.add(index)
        passed = kept.take(choice)
        self._has_sent = self._has_sent or (passed is not None and _has_content(passed))
        return passed

    def _with_usage(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """A chunk with the usage of all replies; without usage if another reply follows this one."""
        if not isinstance(chunk.get("usage"), Mapping):
            return chunk
        if self.is_continued:
            return {**chunk, "usage": None}
        earlier = [each.usage for each in self._earlier if each.usage]
        return {**chunk, "usage": usage_for_client(chunk["usage"], earlier)} if earlier else chunk


def _is_choice(value: object) -> bool:
    """Whether a chunk's choice has the form that we read; a chunk with any other passes as it came."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("index") or 0, int)
        and isinstance(value.get("delta") or {}, dict)
    )


def _has_content(choice: Mapping[str, Any]) -> bool:
    """Whether a choice has more than a role: text, calls, reasoning, or a finish reason."""
    delta = choice.get("delta") or {}
    return choice.get("finish_reason") is not None or any(value for key, value in delta.items() if key != "role")


def _json_object(data: bytes) -> dict[str, Any] | None:
    body = json_or_none(data)
    return body if isinstance(body, dict) else None


def _rewritten(lines: list[bytes], body: Mapping[str, Any]) -> bytes:
    """An event with `body` as its data, its other lines as they came."""
    at = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
    others = [line for line in lines[at + 1 :] if not line.startswith(b"data:")]
    data = b"data: " + dump(body).encode() + end
    return b"".join([*lines[:at], data, *others])
