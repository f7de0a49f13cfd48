"""One choice of a streamed reply: adds its deltas up to a message, and takes the hidden calls out of them. Pure.

A call is hidden by its name, which comes with its first delta. Where a server splits the name over several deltas, a
call whose name may still become that of the memory tool is held back until the name is known. The client's calls are
numbered without the hidden ones; while there is no hidden call, they keep the numbers that they came with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.searching.reply_choice import NO_ANSWER, FirstChoice, calls_of, finish_for_client
from proxy.searching.tool import NAME

Json = dict[str, Any]


@dataclass(slots=True)
class _Call:
    """A call as far as it has come: `index` is the upstream's number of it, `number` the client's.

    `hidden` is None until its name is known; until then it is held back.
    """

    index: object
    body: Json = field(default_factory=dict)
    hidden: bool | None = None
    number: object = None

    def is_continued_by(self, piece: Mapping[str, Any]) -> bool:
        """Whether a piece belongs to this call; some servers give all calls one number, and tell them apart by id."""
        is_new = piece.get("id") not in (None, "", self.body.get("id")) and _function(piece).get("name")
        return piece.get("index") == self.index and not is_new

    def add(self, piece: Mapping[str, Any]) -> None:
        """Adds a piece to the call."""
        function = _function(piece)
        if function:
            piece = {**piece, "function": _joined(_function(self.body), function)}
        self.body |= {key: value for key, value in piece.items() if key != "index" and value not in (None, "")}
        if self.hidden is None:
            self.hidden = self._is_hidden()

    def _is_hidden(self) -> bool | None:
        function = _function(self.body)
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
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _others: Json = field(default_factory=dict)
    _calls: list[_Call] = field(default_factory=list)

    @property
    def message(self) -> Json:
        """The message that the deltas add up to, so far."""
        calls = {"tool_calls": [call.body for call in self._calls]} if self._calls else {}
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        return {"role": "assistant", "content": None, **self._others, **texts, **calls}

    def take(self, choice: Mapping[str, Any]) -> Json | None:
        """Takes in a chunk's choice. Returns the part of it that goes to the client; None for nothing."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {}
        self._add(delta)
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
        choice = FirstChoice(self.message, self.finish)
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
        if reason != finish and not (self.has_text or any(self._texts.get("content", ()))):
            delta = {**delta, "content": NO_ANSWER}
        return delta, reason

    def _add(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            if isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
                continue
            before = self._others.get(key)
            self._others[key] = before + value if isinstance(value, list) and isinstance(before, list) else value

    def _piece(self, piece: Mapping[str, Any]) -> Iterator[Json]:
        """The pieces of calls that go to the client when a piece of a call comes."""
        call = next((each for each in reversed(self._calls) if each.is_continued_by(piece)), None)
        if call is None:
            yield from self._released()
            call = _Call(piece.get("index"))
            self._calls.append(call)
        was_held = call.hidden is None and bool(call.body)
        call.add(piece)
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


def _function(body: Mapping[str, Any]) -> Mapping[str, Any]:
    function = body.get("function")
    return function if isinstance(function, Mapping) else {}


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> Json:
    """A function with one more piece; a server that repeats the whole name adds nothing to it."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}
