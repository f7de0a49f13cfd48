"""What an endpoint is: the part of a wire protocol that belongs to the shell.

Theory of operation. A protocol has two halves. Its dialect, in the pure core, reads and writes the elements of a
message list. Its endpoint knows the rest of the wire: which member of a body holds the list, which others cost prompt
tokens, what names a session, how a reply is read, what errors look like. Everything else asks the endpoint of a request
and names no member by itself, so that a further protocol is one more folder here and changes nothing elsewhere.

An endpoint is a value without state, and there is one for each protocol. The endpoint of a request is found by its path
and stays with its body (`proxy.request.wire.Body`). What it says of the members around the list is asked once for all
requests that have the same ones, because these are cached together (`proxy.request.scanning.Envelope`); what it says of
an element is asked once for each new element. So a known request asks it almost nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from proxy.endpoints.hidden_calls import JoinReplies, MakeSplicer, Said, ToolMembers, ToolUse
from proxy.endpoints.replies import Capture, Items, JsonCapture, StreamCapture, TextPlaces
from proxy.errors import ProxyError
from proxy.http.headers import BEARER, Headers, is_event_stream
from proxy.reasons import Reason
from proxy.tokens.counter import Counter
from strategies.core.effects import Answer, Failure
from strategies.core.messages import Dialect
from strategies.core.parsing import loads
from strategies.core.shaping import BRIDGE
from strategies.core.transcript import Transcript

_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")
_ANY_SESSION_HEADER = re.compile(rb"x-[a-z0-9-]+-session-id")

Values = Mapping[str, Any]
"""The members of a request body but the message list, parsed."""


class SessionHint(NamedTuple):
    """An id that a client gives its conversation."""

    source: str
    """The header or the member of the body that has it."""
    id: object
    """The id as it came; it counts only if it is a text."""
    is_weak: bool = False
    """Whether it counts only if the stored history continues in the request."""


class MalformedElement(ValueError):
    """A JSON value that is no element of the list. The text goes on after the name of the element: `must be …`."""

    def __init__(self, problem: str, member: str = "") -> None:
        """`member` is the path from the element to the value that is wrong: `.role`."""
        super().__init__(problem)
        self.member = member


@dataclass(frozen=True, slots=True)
class Question:
    """What one of the proxy's own calls asks a model.

    There are two forms. In the isolated form a question is a system and a user message, without tools. In the continued
    form it is a view, byte for byte, and one more user message, with what stands around the list in the request's
    prompt, so that the upstream's prompt cache of the view is used.
    """

    model: str
    system: str
    """Left out where there is a view."""
    user: str
    max_tokens: int
    """The maximum number of tokens of one answer."""
    view: str | None = None
    """The message list that is continued, as JSON text."""
    members: Mapping[str, str] = field(default_factory=dict)
    """What stands around the list, by member (`Endpoint.prompt_members`), as JSON text. No tool may be called."""
    alternates: bool = False
    """Whether the server refuses two messages of one role in a row."""
    n: int = 1
    """The number of answers."""
    temperature: float | None = None

    @property
    def has_tools(self) -> bool:
        """Whether its members offer tools."""
        return _NO_TOOLS.fullmatch(self.members.get("tools", "null")) is None

    def continued(self, view: str, dialect: Dialect, bridged: Sequence[str] = ()) -> str:
        """A view as JSON text, with the user's message at its end.

        Where roles must alternate, an assistant message goes before it if the last role is one of `bridged`.
        """
        messages = loads(view) if self.alternates and bridged else []
        is_bridged = bool(messages) and str(messages[-1].get("role")) in bridged
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        added = [*([dialect.assistant(BRIDGE)] if is_bridged else ()), dialect.user(self.user)]
        head = view.rstrip().removesuffix("]").rstrip()
        between = "" if head.endswith("[") else ","
        return f"{head}{between}{','.join(map(json.dumps, added))}]"


def written(members: Mapping[str, str]) -> bytes:
    """A body of these members, given as JSON text, in their order."""
    return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()


class AsEvents(Protocol):
    """Turns a reply in one piece into events; `is_success` says what its status was."""

    def __call__(self, data: bytes, *, is_success: bool) -> bytes | None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """One wire protocol, as far as the shell must know it."""

    dialect: Dialect
    """Reads and writes the elements of its message lists."""
    path: str
    """The path that clients send requests to, and to which they are forwarded."""
    path_ending: str
    """What paths of the protocol end in that are not under `/v1`, such as those with a provider's prefix."""

    # -- requests: the list

    list_member: str
    """The member of a body that holds the list of elements."""
    look: Callable[[object], tuple[str, bool]]
    """The role of a new element, and whether it is text only, so that its bytes bound its tokens.

    Raises `MalformedElement`.
    """
    from_text: Callable[[str], Mapping[str, object]] | None = None
    """The element that a text stands for, if a text may take the place of the list."""
    list_is_optional: bool = False
    """Whether a body may have no list, or an empty one."""

    server_state: Callable[[Values, Iterable[str]], Reason | None] = lambda _values, _roles: None
    """Why a request must pass as it came, because the server holds a part of its history; None for nearly all.

    The second argument are the roles of the elements, as `look` gives them.
    """

    previous_reply: str = ""
    """The member that names the reply that a request goes on from, with all that came before it; "" for none."""
    is_kept: Callable[[Values], bool] = lambda _values: False
    """Whether the server keeps the reply to a request, so that a later one may name it."""

    # -- requests: the members around the list

    counted_members: tuple[str, ...]
    """The members that cost prompt tokens: tools, and a system prompt outside of the list."""
    counter: type[Counter]
    """Counts the tokens of messages and of these members."""
    reply_limits: tuple[str, ...]
    """The members that bound the length of the reply, in tokens; the first one that is set counts."""
    offers_tools: Callable[[Values, Transcript], bool]
    """Whether a request offers tools to its model, in its members or in its list."""
    keeps_reasoning: Callable[[Values], bool] = lambda _values: False
    """Whether a request wants its reasoning kept in any view, in a dialect that binds it (`Dialect.unbound`)."""
    has_one_choice: Callable[[Values], bool]
    """Whether a request asks for one reply, and not for several to choose from."""
    usage_probe: Callable[[Values], Mapping[str, str]]
    """The members, as JSON text, with which a stream reports its usage; empty if it does that anyway or cannot."""

    with_marker: Callable[[Values, Sequence[bytes], int], bytes | None] = lambda _values, _elements, _place: None
    """The element at a place of a view, at which its head ends, with a marker of the prompt cache; None for no marker.

    The view is given as the bytes of its elements.
    """

    # -- requests: headers

    session_hints: Callable[[Headers, Values], Iterable[SessionHint]]
    """The ids that name the session, in order of precedence. The names of the headers are in lower case."""
    is_subagent: Callable[[Headers], bool] = lambda _headers: False
    """Whether an agent that another one has started asks; it gets no memory."""
    compacts_by_usage: Callable[[Headers], bool] = lambda _headers: False
    """Whether a client is an agent that compacts its own history by the usage that it is shown."""
    key_header: tuple[bytes, bytes] = BEARER
    """The header that carries an API key, and the text before the key in it."""

    # -- replies: what is read of them

    answer: re.Pattern[bytes]
    """Matches what only a normal reply has, or an event of one, and no error."""
    is_greeting: Callable[[object], bool]
    """Whether an event says nothing yet, so that it may be held back until it is known that no error follows."""
    last_event_at: Callable[[bytes, bytes], int]
    """Where in a chunk of a stream the event begins that ends the stream; -1 for nowhere.

    The second argument are bytes that stand before the chunk.
    """
    last_event_has_data: bool = False
    """Whether that event says anything of the reply, such as its usage, so that all of it must be read first."""
    text_places: TextPlaces
    """Where its replies have their text, whose ending is read (`proxy.endpoints.replies.ending_in`)."""
    items_in: Callable[[Any], Items]
    """What the model said in the document of a reply, as a client would send it back; empty for no complete reply."""
    stream_capture: type[StreamCapture]
    """Captures what the model says in a reply in events."""
    is_usage_alone: Callable[[object], bool]
    """Whether an event is there only because `usage_probe` has asked for it."""

    # -- replies: what the proxy itself says

    error_body: Callable[[ProxyError], bytes]
    """An error of the proxy as the body of a reply."""
    error_event: Callable[[ProxyError, bytes], bytes]
    """An error of the proxy as the end of a stream. The second argument are the last bytes that were sent."""
    beat: Callable[[str, float], bytes]
    """A sign of life that changes nothing, in a stream of this model, at a time in seconds since the epoch."""
    as_events: AsEvents
    """The events of a stream that say the same as a reply in one piece; None if the data is no such reply."""

    # -- counting

    count_path: str = ""
    """The path at which clients ask what a request would cost; "" for none."""
    counted: Callable[[int], Mapping[str, object]] = lambda tokens: {"input_tokens": tokens}
    """The answer at that path, where the upstream has none."""

    # -- the proxy's own calls

    question: Callable[[Question, str], bytes]
    """The body that asks a model a question; its second argument names the member that bounds the answer."""
    answers: Callable[[Mapping[str, Any], int], Sequence[Answer | Failure] | None]
    """The answers in a reply, and why each ended in chat's words: `stop`, `length`; None if it has none.

    The second argument are the tokens that each is said to have cost.
    """
    prompt_members: tuple[str, ...]
    """The members that stand before the list in a prompt, so that a question that goes on from it needs them too."""
    gives_several_answers: bool = False
    """Whether one question may ask for several answers."""
    lent_headers: tuple[bytes, ...] = ()
    """How those headers of a request begin that a call on its behalf has too, besides its credential."""

    # -- the memory tool (`proxy.endpoints.hidden_calls`)

    tool: Callable[[str, str, Mapping[str, Any]], str]
    """A tool of this name, description and schema of parameters, as JSON text."""
    tool_use: Callable[[Values], ToolUse | None]
    """What a request says of tools; None if no tool can be added."""
    tool_members: ToolMembers
    results: Callable[[Sequence[tuple[str, str]]], Items]
    """The elements that answer hidden calls: for each its id and the text of its result."""
    said: Callable[[bytes], Said | None]
    """What the model said in a reply in one piece; None where it is no reply of a model."""
    joined: JoinReplies
    splicer: MakeSplicer

    def capture(self, headers: Headers) -> Capture:
        """A capture for a reply with these headers."""
        return self.stream_capture() if is_event_stream(headers) else JsonCapture(self.items_in)


def any_session_headers(headers: Headers) -> Iterator[SessionHint]:
    """The ids in headers named `x-…-session-id`, whatever tool sends them."""
    for name, value in headers:
        if name.endswith(b"-session-id") and _ANY_SESSION_HEADER.fullmatch(name):
            yield SessionHint(name.decode("latin-1"), value.decode("latin-1"))


def openai_session_hints(headers: Headers, values: Values) -> Iterator[SessionHint]:
    """The ids of any `X-…-Session-Id` header, of the metadata, and of the prompt cache."""
    yield from any_session_headers(headers)
    metadata = values.get("metadata")
    if isinstance(metadata, Mapping):
        yield SessionHint("metadata.session_id", metadata.get("session_id"))
    yield SessionHint("prompt_cache_key", values.get("prompt_cache_key"), is_weak=True)
