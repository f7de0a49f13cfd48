"""Joins several streams of chat completion chunks into one stream for the client: bytes in, bytes out. Pure.

A model that searches answers in several replies; the client sees one. Events pass as they come, byte for byte where
nothing in them must change. The deltas of hidden calls are held back, and so is the end of a reply that another one
follows: its finish reason, its usage, its `[DONE]`. The next reply goes on under the id, the time and the model of the
first one, without the role; the last usage counts the completion tokens of all of them.

`proxy.endpoints.hidden_calls` says how the driver uses a splicer.

`Choice` adds the deltas of one choice up to a message, and takes the hidden calls out of them. A call is hidden by its
name, which comes with its first delta. Where a server splits the name over several deltas, a call whose name may still
become that of the memory tool is held back until the name is known. The client's calls are numbered without the hidden
ones; while there is no hidden call, they keep the numbers that they came with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.endpoints.chat.hidden_calls import FirstChoice, calls_of, finish_for_client, usage_for_client
from proxy.endpoints.chat.replies import ANSWER, StreamedCall, StreamedMembers, continued_call, function_of
from proxy.endpoints.hidden_calls import NAME, NO_ANSWER, Splicer, rewritten
from proxy.endpoints.replies import Json
from proxy.values import json_or_none

_DONE = b"[DONE]"

_IDENTITY = ("id", "created", "model")


class ChatSplicer(Splicer[FirstChoice]):
    """Joins replies into one stream."""

    answer = ANSWER

    def __init__(self, *, runs_calls: bool) -> None:
        super().__init__(runs_calls=runs_calls)
        self._identity: dict[str, Any] | None = None
        self._roles: set[int] = set()

    def _reset(self) -> None:
        super()._reset()
        self._choices: dict[int, Choice] = {}
        self._usage: Mapping[str, Any] | None = None
        self._failed = False

    @property
    def said(self) -> FirstChoice:
        """The reply's first choice, as far as it has come."""
        choice = self._choices.get(0) or Choice()
        return FirstChoice(choice.message, finish=choice.finish, usage=self._usage)

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        choice = self._choices.get(0)
        ended = choice is not None and (self.is_over or choice.finish is not None)
        return ended and self._runs_calls and not self._failed and self.said.calls_memory

    def _passed(self, lines: list[bytes], data: bytes) -> bytes:
        if data == _DONE:
            self.is_over = True
            return b"" if self.is_continued else b"".join(lines)
        body = _json_object(data)
        if body is None:
            return b"".join(lines)
        passed = self._pass_chunk(body)
        if passed is None:
            return b""
        return b"".join(lines) if passed == body else rewritten(lines, passed)

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


@dataclass(slots=True)
class _Call(StreamedCall):
    """A call that the client may not see; `number` is the client's number of it.

    `hidden` is None until its name is known; until then it is held back.
    """

    hidden: bool | None = None
    number: object = None

    def take(self, piece: Mapping[str, Any]) -> None:
        self.add(piece)
        if self.hidden is None:
            self.hidden = self._is_hidden()

    def _is_hidden(self) -> bool | None:
        function = function_of(self.body)
        name = function.get("name", "")
        if name == NAME or "custom" in self.body:
            return bool(name == NAME)
        return None if NAME.startswith(name) and not function.get("arguments") else False


@dataclass(slots=True)
class Choice:
    """The deltas of one choice of one reply."""

    runs_calls: bool = False
    """Whether hidden calls are run."""
    has_role: bool = False
    """Whether the client has the role already, from an earlier reply of the same stream."""
    has_text: bool = False
    """Whether the client has text already, from an earlier reply of the same stream."""
    finish: str | None = None
    """The finish reason, once it has come."""
    _members: StreamedMembers = field(default_factory=StreamedMembers)
    _calls: list[_Call] = field(default_factory=list)

    @property
    def message(self) -> Json:
        """The message that the deltas add up to, so far."""
        return self._members.message([call.body for call in self._calls])

    def take(self, choice: Mapping[str, Any]) -> Json | None:
        """Takes in a chunk's choice. Returns the part of it that goes to the client; None for nothing."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {}
        self._members.add(delta)
        finish = choice.get("finish_reason")
        passed = self._visible(delta, is_last=finish is not None)
        changes: Json = {}
        if finish is not None:
            self.finish = finish
            passed, finish = self._finished(passed, finish)
            changes = {"finish_reason": finish}
        if finish is None and passed != delta and not any(passed.values()):
            return None
        return {**choice, **changes, **({} if passed == delta else {"delta": passed})}

    @property
    def is_continued(self) -> bool:
        """Whether another reply follows this one: it has finished, and called nothing but the memory tool."""
        choice = FirstChoice(self.message, finish=self.finish)
        return self.runs_calls and self.finish is not None and choice.calls_memory and not choice.has_client_calls

    def _visible(self, delta: Json, *, is_last: bool) -> Json:
        """The part of a delta that the client gets."""
        calls = [piece for each in calls_of(delta) if isinstance(each, Mapping) for piece in self._piece(each)]
        if is_last:
            calls += self._released()
        passed = {key: value for key, value in delta.items() if key != "role" or not self.has_role}
        if calls:
            passed["tool_calls"] = calls
        elif passed.get("tool_calls"):
            del passed["tool_calls"]
        return passed

    def _finished(self, delta: Json, finish: str) -> tuple[Json, object]:
        """The last delta and the finish reason as the client gets them; no reason if another reply follows."""
        if self.is_continued:
            return delta, None
        client_calls = [call for call in self._calls if not call.hidden]
        reason = finish_for_client(finish, has_calls=bool(client_calls) or not self._calls)
        if reason != finish and not (self.has_text or any(self._members.texts.get("content", ()))):
            delta = {**delta, "content": NO_ANSWER}
        return delta, reason

    def _piece(self, piece: Mapping[str, Any]) -> Iterator[Json]:
        """The pieces of calls that go to the client when a piece of a call comes."""
        call = continued_call(self._calls, piece)
        if call is None:
            yield from self._released()
            call = _Call(piece.get("index"))
            self._calls.append(call)
        was_held = call.hidden is None and bool(call.body)
        call.take(piece)
        if call.hidden is False:
            yield self._numbered(call, call.body if was_held else piece)

    def _released(self) -> Iterator[Json]:
        """The calls that were held back: no more of their names will come, so they are not hidden."""
        for call in self._calls:
            if call.hidden is None:
                call.hidden = False
                yield self._numbered(call, {"index": call.index, **call.body})

    def _numbered(self, call: _Call, piece: Mapping[str, Any]) -> Json:
        if call.number is None:
            others = [each for each in self._calls if each is not call]
            hides = any(each.hidden for each in others)
            call.number = sum(each.hidden is False for each in others) if hides else call.index
        is_first = "index" not in piece and call.index is not None
        if is_first or piece.get("index", call.number) != call.number:
            return {**piece, "index": call.number}
        return dict(piece)
