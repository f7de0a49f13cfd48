"""One choice of a streamed reply: its deltas add up to a message, and those of hidden calls are taken out. Pure.

A call is hidden by its name, which comes with its first piece. Where a server sends the name in pieces too, what may
yet become the name of the memory tool is held back until it is known. The client's calls are numbered without the
hidden ones; while there is none, they keep the numbers that they came with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.memory.heard import NO_ANSWER, Heard, calls_of, finish_without
from proxy.memory.tool import NAME

Json = dict[str, Any]


@dataclass(slots=True)
class _Call:
    """A call as far as it has come: `index` is the upstream's number, `number` the client's.

    `hidden` is None while its name is not known whole; until then it is held back.
    """

    index: object
    body: Json = field(default_factory=dict)
    hidden: bool | None = None
    number: object = None

    def is_gone_on_with(self, piece: Mapping[str, Any]) -> bool:
        """Whether a piece belongs to this call: some servers number all calls alike, and tell them apart by id."""
        is_new = piece.get("id") not in (None, "", self.body.get("id")) and _function(piece).get("name")
        return piece.get("index") == self.index and not is_new

    def add(self, piece: Mapping[str, Any]) -> None:
        """Joins a piece."""
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
    """The deltas of one choice of one reply.

    `runs`: hidden calls are run. `has_role` and `has_text`: an earlier reply of the same stream has told the role, and
    some text.
    """

    runs: bool = False
    has_role: bool = False
    has_text: bool = False
    finish: str | None = None
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _others: Json = field(default_factory=dict)
    _calls: list[_Call] = field(default_factory=list)

    @property
    def message(self) -> Json:
        """The message that the deltas add up to."""
        calls = {"tool_calls": [call.body for call in self._calls]} if self._calls else {}
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        return {"role": "assistant", "content": None, **self._others, **texts, **calls}

    def take(self, choice: Mapping[str, Any]) -> Json | None:
        """What of a chunk's choice goes to the client; None for nothing, its equal where all of it does."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {}
        self._add(delta)
        finish = choice.get("finish_reason")
        told = self._told(delta, is_last=finish is not None)
        changes: Json = {}
        if finish is not None:
            self.finish = finish
            told, finish = self._finished(told, finish)
            changes = {"finish_reason": finish}
        if finish is None and told != delta and not any(told.values()):
            return None
        return {**choice, **changes, **({} if told == delta else {"delta": told})}

    @property
    def goes_on(self) -> bool:
        """Whether another reply follows this one: it has finished, and called nothing but what is run."""
        heard = Heard(self.message, self.finish)
        return self.runs and self.finish is not None and heard.searches and not heard.has_others

    def _told(self, delta: Json, *, is_last: bool) -> Json:
        """What of a delta the client gets."""
        passed = [piece for each in calls_of(delta) if isinstance(each, Mapping) for piece in self._piece(each)]
        if is_last:
            passed += self._known()
        told = {key: value for key, value in delta.items() if key != "role" or not self.has_role}
        if passed:
            told["tool_calls"] = passed
        elif told.get("tool_calls"):
            del told["tool_calls"]
        return told

    def _finished(self, told: Json, finish: str) -> tuple[Json, object]:
        """The last delta, and the reason to finish, as the client gets them: what goes on has not finished."""
        if self.goes_on:
            return told, None
        left = [call for call in self._calls if not call.hidden]
        reason = finish_without(finish, left=bool(left) or not self._calls)
        if reason != finish and not (self.has_text or any(self._texts.get("content", ()))):
            told = {**told, "content": NO_ANSWER}
        return told, reason

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
        """What goes to the client when a piece of a call comes."""
        call = next((each for each in reversed(self._calls) if each.is_gone_on_with(piece)), None)
        if call is None:
            yield from self._known()
            call = _Call(piece.get("index"))
            self._calls.append(call)
        was_held = call.hidden is None and bool(call.body)
        call.add(piece)
        if call.hidden is False:
            yield self._numbered(call, call.body if was_held else piece)

    def _known(self) -> Iterator[Json]:
        """Calls that were held back and whose names are known now, for nothing more will come of them."""
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
    """A function with a piece more; a server that repeats the whole name adds nothing to it."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}
