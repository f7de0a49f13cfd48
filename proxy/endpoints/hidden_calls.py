"""Calls of the proxy's own tool, which the client does not see: what the loop that runs them must know of a protocol.

The tool stands among the client's own. A model that calls it says so in a reply (`Said`). The loop runs the calls, adds
them and their results to the request as a hidden round, and asks again. The client sees one reply, made of all of them:
in one piece (`Endpoint.joined`), or as a stream (`Splicer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, Protocol

from proxy.endpoints.replies import Items

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


class Said(Protocol):
    """What a model said in one reply."""

    @property
    def text(self) -> str:
        """The text of the reply."""
        ...

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The usage of the reply."""
        ...

    @property
    def calls_memory(self) -> bool:
        """Whether the memory tool is called, and the reply did not end within a call."""
        ...

    @property
    def has_client_calls(self) -> bool:
        """Whether the client's own tools are called."""
        ...

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The hidden calls; one without an id gets one that begins with `prefix`."""
        ...


class Splicer(Protocol):
    """Joins several event streams of an upstream into one stream for the client: bytes in, bytes out.

    It is fed the bytes of one reply after another. When the reply `is_over` and `is_continued`, another one is to
    follow, and `begin` is called. If a later reply fails before the client has anything of it, its error is held back
    as `failed_event`, and another reply may take its place.
    """

    is_over: bool
    """Whether the last event of the reply has come."""
    failed_event: bytes

    def begin(self, *, runs_calls: bool, replaceable: bool = True) -> None:
        """Goes on with another reply; `replaceable` says whether one more may take its place if it fails."""
        ...

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client when a chunk of a reply comes."""
        ...

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended."""
        ...

    @property
    def said(self) -> Said:
        """What the model said in the reply, as far as it has come."""
        ...

    @property
    def has_sent_text(self) -> bool:
        """Whether the client has got text of the answer."""
        ...

    @property
    def is_unanswered(self) -> bool:
        """Whether the client has nothing of this reply yet, and no text of the ones before it."""
        ...

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        ...

    @property
    def is_continued(self) -> bool:
        """Whether the upstream is to be asked again: the model called only the memory tool."""
        ...


class MakeSplicer(Protocol):
    """Makes a splicer; `runs_calls` says whether the hidden calls of the first reply are run."""

    def __call__(self, *, runs_calls: bool) -> Splicer: ...


class JoinReplies(Protocol):
    """Writes a reply in one piece as the client gets it: without hidden calls, with the usage of `earlier` replies.

    Their text is added too if the reply `keeps_text`. Where none of that applies, the bytes are unchanged.
    """

    def __call__(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes: ...


class ToolMembers(Protocol):
    """The members of a body, as JSON text, that offer `tools`, the tool among them.

    In the last request the tool may not be called any more.
    """

    def __call__(self, tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]: ...
