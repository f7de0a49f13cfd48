"""Calls of the memory tool, which the client does not see: what the code that runs them must know of a protocol.

The tool is listed among the client's own. If the model calls it in a reply (`Said`), the proxy runs the calls, adds
them and their results to the request as a hidden round, and asks again. The client sees one reply, made of all of them:
in one piece (`Endpoint.joined`), or as a stream (`Splicer`). `proxy/conversations/searching.py` runs this loop.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from proxy.http.sse import EventEditor, Events, data_of
from proxy.protocols.replies import Items, Json, usage_in
from proxy.servers.error_bodies import is_error_body
from proxy.values import count_at, json_or_none
from strategies.core.messages import dump

NAME = "search_memory"  # the name of the memory tool
NO_ANSWER = "(The model gave no answer.)"
"""Sent to the client instead of an empty message, which many servers refuse when the client sends it back."""


class ToolUse(NamedTuple):
    """What a request says about tools."""

    names: AbstractSet[str]  # the names of the client's tools
    has_tools: bool  # whether the client has tools
    takes_another: bool  # whether the memory tool can be added to them
    runs_calls: bool
    """Whether its calls are run: the model may choose freely whether to call it, and one answer is wanted."""


class HiddenCall(NamedTuple):
    """One call of the memory tool: its id, and its arguments as received."""

    id: str
    arguments: object


class HiddenRound(NamedTuple):
    """What the model said before the results of its hidden calls."""

    items: Items  # the elements that are sent back to the model
    text: str  # their text
    calls: Sequence[HiddenCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(ABC):
    """What a model said in one reply."""

    complete: ClassVar[tuple[str | None, ...]]
    """The finish reasons after which calls are complete; some servers give none, or the wrong one."""
    finish: str | None = None  # why the reply ended, in the words of its protocol
    usage: Mapping[str, Any] | None = None

    @property
    @abstractmethod
    def text(self) -> str:
        """The text of the reply."""

    @property
    @abstractmethod
    def memory_calls(self) -> Items:
        """The calls of the memory tool."""

    @property
    def calls_memory(self) -> bool:
        """Whether the memory tool is called, and no call was cut off."""
        return bool(self.memory_calls) and self.finish in self.complete

    @property
    @abstractmethod
    def has_client_calls(self) -> bool:
        """Whether the client's own tools are called."""

    @abstractmethod
    def hidden_round(self, prefix: str) -> HiddenRound:
        """The hidden calls; a call without an id gets one that begins with `prefix`."""


def with_usage(body: Mapping[str, Any], earlier: Iterable[Said]) -> Json:
    """A reply, or an event with a usage, whose completion tokens include those of `earlier` replies."""
    usages = [said.usage for said in earlier if said.usage]
    if not (usages and isinstance(body.get("usage"), Mapping)):
        return dict(body)
    total = dict(body["usage"])
    for usage in usages:
        for name in ("completion_tokens", "output_tokens"):
            if more := count_at(usage, name):
                total[name] = count_at(total, name) + more
            details, before = total.get(f"{name}_details"), usage.get(f"{name}_details")
            if isinstance(details, Mapping):
                added = {
                    key: count_at(details, key) + count_at(before, key) for key in details if count_at(before, key)
                }
                total[f"{name}_details"] = {**details, **added}
    if "total_tokens" in total and (counts := usage_in(total)):
        total["total_tokens"] = counts.prompt + counts.completion
    return {**body, "usage": total}


S = TypeVar("S", bound=Said)


class Splicer(EventEditor, Generic[S]):
    """Joins several event streams of an upstream into one stream for the client: bytes in, bytes out.

    Events pass as they come, byte for byte if nothing in them must change. What belongs to hidden calls is held back,
    and if another reply follows, so is the end of this one: finish reason, usage, last event. The last usage counts the
    completion tokens of all replies.
    It is fed the bytes of one reply after another. If a reply `is_over` and `is_continued`, `begin` must be called and
    the next reply be fed. If a later reply fails before the client has anything of it, its error is held back as
    `failed_event`, and another reply may take its place. `runs_calls` tells whether the hidden calls of the first reply
    are run.
    """

    answer: ClassVar[re.Pattern[bytes]]  # as in `Endpoint.answer`
    is_over = False  # whether the last event of the reply has come
    failed_event = b""
    _finish: str | None = None  # why the reply ended, once it is known
    _failed = False  # whether an error has come
    _replaceable = False
    _has_sent = False  # whether the client has anything of this reply

    def __init__(self, *, runs_calls: bool) -> None:
        self._runs_calls = runs_calls
        self._earlier: list[S] = []
        self._reset()

    def _reset(self) -> None:
        """Forgets the last reply."""
        self._events = Events()
        self._passes = False
        self._has_sent = self.is_over = self._failed = False
        self._finish, self.failed_event = None, b""

    def begin(self, *, runs_calls: bool, replaceable: bool = True) -> None:
        """Continues with another reply; `replaceable` tells whether yet another may take its place if it fails."""
        self._earlier.append(self.said)
        self._runs_calls, self._replaceable = runs_calls, replaceable
        self._reset()

    @property
    @abstractmethod
    def said(self) -> S:
        """What the model has said in the reply so far."""

    @property
    @abstractmethod
    def document(self) -> Json:
        """The reply so far, as it would be in one piece; empty if it has failed."""

    @property
    def has_searches(self) -> bool:
        """Whether there are complete hidden calls to run."""
        has_ended = self.is_over or self._finish is not None
        return has_ended and self._runs_calls and not self._failed and self.said.calls_memory

    @property
    def is_continued(self) -> bool:
        """Whether the upstream must be asked again, because the model called only the memory tool."""
        return self.has_searches and not self.said.has_client_calls

    @property
    def has_sent_text(self) -> bool:
        """Whether the client has text of the answer."""
        return any(said.text for said in (*self._earlier, self.said))

    @property
    def is_replaceable(self) -> bool:
        """Whether another reply may take the place of this one, because the client has nothing of it."""
        return self._replaceable and not self._has_sent

    @property
    def is_unanswered(self) -> bool:
        """Whether this reply is replaceable, and the client has no text of the earlier ones either."""
        return self.is_replaceable and not self.has_sent_text

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client when a chunk of a reply comes."""
        passed = super().feed(chunk)
        return b"" if self._passes and self.is_continued else passed

    def _edit(self, chunk: bytes) -> bytes:
        return b"".join([self._pass_event(lines) for lines in self._events.feed(chunk)])

    def _held_bytes(self) -> int:
        return self._events.size

    def _release(self) -> bytes:
        self._has_sent = True
        return self._events.rest()

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: an unfinished last event, unchanged."""
        rest = self._events.rest()
        return b"" if self.is_continued else rest

    def _pass_event(self, lines: list[bytes]) -> bytes:
        if self.is_replaceable and is_error_body(event := b"".join(lines), answer=self.answer):
            self.failed_event = event
        if self.failed_event:
            return b""
        data = data_of(lines)
        if data == b"[DONE]":
            self.is_over = True
            return b"" if self.is_continued else b"".join(lines)
        body = json_or_none(data) if data else None
        return self._passed(lines, body) if isinstance(body, dict) else b"".join(lines)

    @abstractmethod
    def _passed(self, lines: list[bytes], body: Json) -> bytes:
        """The bytes that the client gets for an event, given its lines and its data."""


def rewritten(lines: list[bytes], body: Mapping[str, Any], passed: Mapping[str, Any] | None) -> bytes:
    """An event whose data `body` is replaced with `passed`: unchanged if they are equal, no bytes if that is None."""
    if passed is None or passed == body:
        return b"" if passed is None else b"".join(lines)
    at = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
    others = [line for line in lines[at + 1 :] if not line.startswith(b"data:")]
    return b"".join([*lines[:at], b"data: " + dump(passed).encode() + end, *others])
