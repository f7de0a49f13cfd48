"""Several event streams of an upstream as one stream for the client: bytes in, bytes out. Pure.

A model that searches answers in several replies; the client sees one. What a reply says passes when it comes, byte for
byte where nothing of it must change. Held back are the deltas of hidden calls, and the end of a reply that another one
follows: its finish reason, its usage, its `[DONE]`. What follows goes on under the id, the time and the model of the
first reply, without telling the role again; the last usage counts what was completed in all.

`feed` takes in a reply's bytes. When it `is_over` and `goes_on`, the driver asks again and calls `begin`. A later reply
that fails before the client has anything of it is no end: its error is held back as `refused`, and the driver asks
for another one in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.http.sse import Lines
from proxy.memory.deltas import Choice
from proxy.memory.heard import Heard, summed
from proxy.overflow.reading import tells_error
from proxy.request.loose_json import json_or_none
from strategies.core.transcript import dump

_DONE = b"[DONE]"
_TOLD_ONCE = ("id", "created", "model")


class Events:
    """Cuts bytes into events, each of which is given whole. A comment between events does not wait for more."""

    def __init__(self) -> None:
        self._cut = Lines()
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
        """What has come of an event that will not end any more."""
        rest, self._lines = b"".join([*self._lines, self._cut.rest()]), []
        return rest


class Splicer:
    """Makes one stream of several replies. `runs` says whether hidden calls of the first one can be run."""

    def __init__(self, *, runs: bool) -> None:
        self._runs = runs
        self._replaceable = False
        self._identity: dict[str, Any] | None = None
        self._earlier: list[Heard] = []
        self._roles: set[int] = set()
        self._start()

    def _start(self) -> None:
        self._events = Events()
        self._choices: dict[int, Choice] = {}
        self._usage: Mapping[str, Any] | None = None
        self._failed = False
        self._has_told = False
        self.is_over = False
        self.refused = b""

    def begin(self, *, runs: bool, replaceable: bool = True) -> None:
        """Goes on with another reply; `replaceable` says whether one may take its place where it fails."""
        self._earlier.append(self.heard)
        self._runs, self._replaceable = runs, replaceable
        self._start()

    @property
    def heard(self) -> Heard:
        """What the reply says, as far as it has come."""
        choice = self._choices.get(0) or Choice()
        return Heard(choice.message, choice.finish, self._usage)

    @property
    def has_spoken(self) -> bool:
        """Whether the client has text of the answer."""
        return any(each.text for each in (*self._earlier, self.heard))

    @property
    def is_replaceable(self) -> bool:
        """Whether another reply may take the place of this one: the client has nothing of it."""
        return self._replaceable and not self._has_told

    @property
    def is_unanswered(self) -> bool:
        """Whether this reply could be replaced, and the client has no text of the ones before it either."""
        return self.is_replaceable and not self.has_spoken

    @property
    def searches(self) -> bool:
        """Whether hidden calls have come whole and are to be run."""
        choice = self._choices.get(0)
        ended = choice is not None and (self.is_over or choice.finish is not None)
        return ended and self._runs and not self._failed and self.heard.searches

    @property
    def goes_on(self) -> bool:
        """Whether the model is to be asked again: it called nothing of the client's."""
        return self.searches and not self.heard.has_others

    def feed(self, chunk: bytes) -> bytes:
        """What goes to the client when a chunk of a reply comes."""
        return b"".join([self._passed(lines) for lines in self._events.feed(chunk)])

    def rest(self) -> bytes:
        """What is left for the client when a reply has ended, as it came."""
        rest = self._events.rest()
        return b"" if self.goes_on else rest

    def _passed(self, lines: list[bytes]) -> bytes:
        if self.is_replaceable and tells_error(whole := b"".join(lines)):
            self.refused = whole
        if self.refused:
            return b""
        data = b"\n".join(line[5:].strip(b"\r\n").removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        if data == _DONE:
            self.is_over = True
            return b"" if self.goes_on else b"".join(lines)
        body = _parsed(data)
        if body is None:
            return b"".join(lines)
        told = self._chunk(body)
        if told is None:
            return b""
        return b"".join(lines) if told == body else _rewritten(lines, told)

    def _chunk(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """What goes to the client of a chunk; None for nothing."""
        self._failed = self._failed or bool(body.get("error"))
        told = {**body, **self._identity_after(body)}
        if isinstance(body.get("usage"), Mapping):
            self._usage = body["usage"]
        choices = body.get("choices")
        if isinstance(choices, list) and choices and all(map(_is_choice, choices)):
            told["choices"] = [each for choice in choices if (each := self._choice(choice)) is not None]
            if not told["choices"]:
                return None
        elif self.goes_on:
            return None
        return self._with_usage(told)

    def _identity_after(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Who speaks in a later reply: what the first chunk with a choice has said."""
        if self._identity is None and body.get("choices"):
            self._identity = {key: body[key] for key in _TOLD_ONCE if key in body}
        return self._identity or {} if self._earlier and not self._failed else {}

    def _choice(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        index = choice.get("index") or 0
        kept = self._choices.get(index)
        if kept is None:
            has_text = any(each.text for each in self._earlier)
            kept = self._choices[index] = Choice(self._runs, index in self._roles, has_text)
        if "role" in (choice.get("delta") or {}):
            self._roles.add(index)
        told = kept.take(choice)
        self._has_told = self._has_told or (told is not None and _says_something(told))
        return told

    def _with_usage(self, told: dict[str, Any]) -> dict[str, Any]:
        """A chunk with the usage of all replies; the usage of one that another follows is not told."""
        if not isinstance(told.get("usage"), Mapping):
            return told
        if self.goes_on:
            return {**told, "usage": None}
        earlier = [each.usage for each in self._earlier if each.usage]
        return {**told, "usage": summed(told["usage"], earlier)} if earlier else told


def _is_choice(value: object) -> bool:
    """Whether a chunk's choice is one as we read it; what is not passes as it came."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("index") or 0, int)
        and isinstance(value.get("delta") or {}, dict)
    )


def _says_something(choice: Mapping[str, Any]) -> bool:
    """Whether there is more in a choice than that somebody speaks: text, calls, reasoning, or an end."""
    delta = choice.get("delta") or {}
    return choice.get("finish_reason") is not None or any(value for key, value in delta.items() if key != "role")


def _parsed(data: bytes) -> dict[str, Any] | None:
    body = json_or_none(data)
    return body if isinstance(body, dict) else None


def _rewritten(lines: list[bytes], told: Mapping[str, Any]) -> bytes:
    """An event with other data, its other lines as they came."""
    at = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
    others = [line for line in lines[at + 1 :] if not line.startswith(b"data:")]
    data = b"data: " + dump(told).encode() + end
    return b"".join([*lines[:at], data, *others])
