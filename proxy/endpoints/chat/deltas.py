"""The deltas of a streamed choice, added up to its message. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Json = dict[str, Any]
C = TypeVar("C", bound="StreamedCall")


@dataclass(slots=True)
class StreamedMembers:
    """The members of a message besides its role and its tool calls, as far as they have come."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    others: Json = field(default_factory=dict)

    def add(self, delta: Mapping[str, Any]) -> None:
        """Adds a delta: texts and lists grow, other values take the place of earlier ones."""
        for key, value in delta.items():
            if key in ("role", "tool_calls") or value is None:
                continue
            if isinstance(value, str):
                self.texts.setdefault(key, []).append(value)
                continue
            before = self.others.get(key)
            if isinstance(value, list) and isinstance(before, list):
                self.others[key] = before + value
            elif key == "function_call" and isinstance(value, Mapping):
                self.others[key] = _joined(before or {}, value)
            else:
                self.others[key] = value

    def message(self, calls: list[Json]) -> Json:
        """The assistant's message with these tool calls."""
        texts = {key: "".join(parts) for key, parts in self.texts.items()}
        return {
            "role": "assistant",
            "content": None,
            **self.others,
            **texts,
            **({"tool_calls": calls} if calls else {}),
        }


@dataclass(slots=True)
class StreamedCall:
    """A tool call as far as it has come; `index` is the upstream's number of it."""

    index: object
    body: Json = field(default_factory=dict)

    def is_continued_by(self, piece: Mapping[str, Any]) -> bool:
        """Whether a piece belongs to this call; some servers give all calls one number, and tell them apart by id."""
        is_new = piece.get("id") not in (None, "", self.body.get("id")) and function_of(piece).get("name")
        return piece.get("index") == self.index and not is_new

    def add(self, piece: Mapping[str, Any]) -> None:
        """Adds a piece to the call."""
        function = function_of(piece)
        if function:
            piece = {**piece, "function": _joined(function_of(self.body), function)}
        self.body |= {key: value for key, value in piece.items() if key != "index" and value not in (None, "")}


def continued_call(calls: Iterable[C], piece: Mapping[str, Any]) -> C | None:
    """The newest of the calls that a piece belongs to; None if it begins another one."""
    return next((call for call in reversed(list(calls)) if call.is_continued_by(piece)), None)


def function_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a call or of a piece of one; empty if it has none."""
    function = body.get("function")
    return function if isinstance(function, Mapping) else {}


def _joined(so_far: Mapping[str, Any], piece: Mapping[str, Any]) -> Json:
    """A function with one more piece; a server that repeats the whole name adds nothing to it."""
    name, more = so_far.get("name") or "", piece.get("name") or ""
    arguments = piece.get("arguments")
    text = arguments if isinstance(arguments, str) else ""
    return {"name": name if more == name else name + more, "arguments": so_far.get("arguments", "") + text}
