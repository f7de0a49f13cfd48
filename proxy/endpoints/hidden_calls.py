"""Calls of the proxy's own tool, which the client does not see: what the loop that runs them must know of a protocol.

The tool stands among the client's own. A model that calls it says so in a reply (`Said`). The loop runs the calls, adds
them and their results to the request as a hidden round, and asks again. The client sees one reply, made of all of them:
in one piece (`Endpoint.joined`), or as a stream (`Splicer`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from proxy.endpoints.replies import Items, Json, usage_in
from proxy.http.sse import Events, data_of
from proxy.overflow import is_error_body
from proxy.values import count_at, json_or_none
from strategies.core.messages import dump

NAME = "search_memory"
"""The name of the tool."""
NO_ANSWER = "(The model gave no answer.)"
"""What a client gets instead of an empty message, which many servers refuse when it is sent back to them."""


class ToolUse(NamedTuple):
    """What a request says of tools."""

    names: AbstractSet[str]
    """The names of the client's tools."""
    has_tools: bool
    """Whether the client has tools."""
    takes_another: bool
    """Whether another tool may be called along with them."""
    runs_calls: bool
    """Whether the model may choose freely to call it, and one answer is wanted that could follow the call."""


class HiddenCall(NamedTuple):
    """One call of the tool: its id, and its arguments as they came."""

    id: str
    arguments: object


class HiddenRound(NamedTuple):
    """What the model said before the results of its hidden calls."""

    items: Items
    """The elements that are sent back to it."""
    text: str
    """The text in them."""
    calls: Sequence[HiddenCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(ABC):
    """What a model said in one reply."""

    complete: ClassVar[tuple[str | None, ...]]
    """The finishes after which calls are complete; some servers give none, or the wrong one."""
    finish: str | None = None
    """Why the reply ended, as its protocol has it."""
    usage: Mapping[str, Any] | None = None

    @property
    @abstractmethod
    def text(self) -> str:
        """The text of the reply."""

    @property
    @abstractmethod
    def memory_calls(self) -> Items:
        """The calls of the memory tool, which are hidden from the client."""

    @property
    def calls_memory(self) -> bool:
        """Whether the memory tool is called, and the reply did not end within a call."""
        return bool(self.memory_calls) and self.finish in self.complete

    @property
    @abstractmethod
    def has_client_calls(self) -> bool:
        """Whether the client's own tools are called."""

    @abstractmethod
    def hidden_round(self, prefix: str) -> HiddenRound:
        """The hidden calls; one without an id gets one that begins with `prefix`."""


def with_usage(body: Mapping[str, Any], earlier: Iterable[Said]) -> Json:
    """A reply, or an event with its usage: what `earlier` replies have written is added, the prompt is the last's."""
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


class Splicer(ABC, Generic[S]):
    """Joins several event streams of an upstream into one stream for the client: bytes in, bytes out.

    It is fed the bytes of one reply after another. When the reply `is_over` and `is_continued`, another one is to
    follow, and `begin` is called. If a later reply fails before the client has anything of it, its error is held back
    as `failed_event`, and another reply may take its place. `runs_calls` says whether the hidden calls of the first
    reply are run.
    """

    answer: ClassVar[re.Pattern[bytes]]
    """Matches what only an event of a normal reply has, and no error."""
    is_over = False
    """Whether the last event of the reply has come."""
    failed_event = b""
    _finish: str | None = None
    """Why the reply ended, once it is known."""
    _failed = False
    """Whether an error has come."""
    _replaceable = False
    _has_sent = False
    """Whether the client has got anything of this reply."""

    def __init__(self, *, runs_calls: bool) -> None:
        self._runs_calls = runs_calls
        self._earlier: list[S] = []
        self._reset()

    def _reset(self) -> None:
        """Forgets the last reply."""
        self._events = Events()
        self._has_sent = self.is_over = self._failed = False
        self._finish, self.failed_event = None, b""

    def begin(self, *, runs_calls: bool, replaceable: bool = True) -> None:
        """Goes on with another reply; `replaceable` says whether one more may take its place if it fails."""
        self._earlier.append(self.said)
        self._runs_calls, self._replaceable = runs_calls, replaceable
        self._reset()

    @property
    @abstractmethod
    def said(self) -> S:
        """What the model said in the reply, as far as it has come."""

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        has_ended = self.is_over or self._finish is not None
        return has_ended and self._runs_calls and not self._failed and self.said.calls_memory

    @property
    def is_continued(self) -> bool:
        """Whether the upstream is to be asked again: the model called only the memory tool."""
        return self.has_searches and not self.said.has_client_calls

    @property
    def has_sent_text(self) -> bool:
        """Whether the client has got text of the answer."""
        return any(said.text for said in (*self._earlier, self.said))

    @property
    def is_replaceable(self) -> bool:
        """Whether another reply may take the place of this one: the client has nothing of it."""
        return self._replaceable and not self._has_sent

    @property
    def is_unanswered(self) -> bool:
        """Whether this reply could be replaced, and the client has no text of the ones before it either."""
        return self.is_replaceable and not self.has_sent_text

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client when a chunk of a reply comes."""
        return b"".join([self._pass_event(lines) for lines in self._events.feed(chunk)])

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: the rest of its last event, unchanged."""
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
        """What the client gets of an event, given as its lines and its data."""


def rewritten(lines: list[bytes], body: Mapping[str, Any], passed: Mapping[str, Any] | None) -> bytes:
    """An event with `passed` in the place of its data `body`; its bytes as they came for equal data, none for None."""
    if passed is None or passed == body:
        return b"" if passed is None else b"".join(lines)
    at = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
    others = [line for line in lines[at + 1 :] if not line.startswith(b"data:")]
    return b"".join([*lines[:at], b"data: " + dump(passed).encode() + end, *others])
