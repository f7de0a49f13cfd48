"""What an endpoint is: the part of a wire protocol that belongs to the shell.

Theory of operation. A protocol has two halves. Its dialect, in the pure core, reads and writes the elements of a
message list. Its endpoint knows the rest of the wire: which member of a body holds the list, which others cost prompt
tokens, what names a session, how a reply is read, what errors look like. Everything else asks the endpoint of a request
and names no member by itself, so that a further protocol is one more folder here and changes nothing elsewhere.

An endpoint has no state, and there is one for each protocol. The endpoint of a request is found by its path and stays
with its body (`proxy.request.wire.Body`). What it says of the members around the list is asked once for all requests
that have the same ones, because these are cached together (`proxy.request.scanning.Envelope`); what it says of an
element is asked once for each new element. So a known request asks it almost nothing.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.endpoints.hidden_calls import Said, Splicer, ToolUse
from proxy.endpoints.question import Question
from proxy.endpoints.replies import Capture, Items, JsonCapture, StreamCapture, TextPlaces
from proxy.errors import ProxyError
from proxy.http.headers import BEARER, Headers, is_event_stream
from proxy.reasons import Reason
from proxy.tokens.counter import Counter
from proxy.values import json_or_none, object_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import Dialect
from strategies.core.parsing import loads
from strategies.core.shaping import BRIDGE
from strategies.core.transcript import Transcript

_EVENT = re.compile(rb'^(?:event: ?|data: ?\{\s*"type"\s*:\s*")([a-z_.]+)', re.MULTILINE)
_MARK = 64
"""Bytes before a chunk in which the last event may have begun."""
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


def session_headers(headers: Headers) -> Iterator[SessionHint]:
    """The ids in headers named `x-…-session-id`, whatever tool sends them."""
    for name, value in headers:
        if name.endswith(b"-session-id") and _ANY_SESSION_HEADER.fullmatch(name):
            yield SessionHint(name.decode("latin-1"), value.decode("latin-1"))


class Endpoint(ABC):
    """One wire protocol, as far as the shell must know it. Where protocols differ little, the defaults are OpenAI's."""

    dialect: Dialect
    """Reads and writes the elements of its message lists."""
    path: str
    """The path that clients send requests to, and to which they are forwarded."""
    path_ending: str
    """How its other paths end, such as those with a provider's prefix."""

    # -- requests: the list

    list_member = "messages"
    """The member of a body that holds the list of elements."""
    list_is_optional = False
    """Whether a body may have no list, or an empty one."""
    from_text: Callable[[str], Mapping[str, object]] | None = None
    """The element that a text stands for, if a text may take the place of the list."""
    text_parts: tuple[str, ...]
    """The types of parts whose bytes bound their tokens; a picture of a few bytes may cost thousands."""
    previous_reply = ""
    """The member that names an earlier reply, from which a request goes on with all that came before; "" for none."""

    def look(self, value: object) -> tuple[str, bool]:
        """The role of a new element, and whether it is text only, so that its bytes bound its tokens.

        Raises `MalformedElement`.
        """
        if not isinstance(value, dict):
            raise MalformedElement("must be an object.")
        role = value.get("role")
        if not isinstance(role, str):
            raise MalformedElement("has no 'role', or one that is no string.", ".role")
        content = value.get("content")
        return role, not isinstance(content, list) or all(map(self._is_text, content))

    def _is_text(self, part: object) -> bool:
        return part.get("type") in self.text_parts if isinstance(part, dict) else isinstance(part, str)

    def server_state(self, values: Values, roles: Iterable[str]) -> Reason | None:
        """Why a request must pass as it came, because the server holds a part of its history; None for nearly all.

        `roles` are those of the elements, as `look` gives them.
        """
        return None

    def is_kept(self, values: Values) -> bool:
        """Whether the server keeps the reply to a request, so that a later one may name it."""
        return False

    # -- requests: the members around the list

    counted_members: tuple[str, ...]
    """The members that cost prompt tokens: tools, and a system prompt outside of the list."""
    counter: type[Counter]
    """Counts the tokens of messages and of these members."""
    reply_limits: tuple[str, ...]
    """The members that bound the length of the reply, in tokens; the first one that is set counts."""

    def offers_tools(self, values: Values, transcript: Transcript) -> bool:
        """Whether a request offers tools to its model, in its members or in its list."""
        return bool(values.get("tools"))

    def keeps_reasoning(self, values: Values) -> bool:
        """Whether a request wants its reasoning kept in any view, in a dialect that binds it (`Dialect.unbound`)."""
        return False

    def has_one_choice(self, values: Values) -> bool:
        """Whether a request asks for one reply, and not for several to choose from."""
        return True

    def usage_probe(self, values: Values) -> Mapping[str, str]:
        """The members, as JSON text, with which a stream reports its usage; empty if it does that anyway or cannot."""
        return {}

    def with_marker(self, values: Values, elements: Sequence[bytes], place: int) -> bytes | None:
        """The element at a place of a view, at which its head ends, with a marker of the prompt cache.

        None for no marker. The view is given as the bytes of its elements.
        """
        return None

    # -- requests: headers

    key_header: tuple[bytes, bytes] = BEARER
    """The header that carries an API key, and the text before the key in it."""

    def session_hints(self, headers: Headers, values: Values) -> Iterator[SessionHint]:
        """The ids that name the session, in order of precedence. The names of the headers are in lower case."""
        yield from session_headers(headers)
        metadata = values.get("metadata")
        if isinstance(metadata, Mapping):
            yield SessionHint("metadata.session_id", metadata.get("session_id"))
        yield SessionHint("prompt_cache_key", values.get("prompt_cache_key"), is_weak=True)

    def is_subagent(self, headers: Headers) -> bool:
        """Whether an agent that another one has started asks; it gets no memory."""
        return False

    def compacts_by_usage(self, headers: Headers) -> bool:
        """Whether a client is an agent that compacts its own history by the usage that it is shown."""
        return False

    # -- replies: what is read of them

    answer: re.Pattern[bytes]
    """Matches what only a normal reply has, or an event of one, and no error."""
    greetings: tuple[str, ...] = ()
    """The types of events that say nothing yet."""
    last_event: re.Pattern[bytes]
    """Matches the names of the events that end a stream."""
    last_event_has_data = False
    """Whether that event says anything of the reply, so that all of it must be read first."""
    text_places: TextPlaces
    """Where its replies have their text, whose ending is read (`proxy.endpoints.replies.ending_in`)."""
    stream_capture: type[StreamCapture]
    """Captures what the model says in a reply in events."""

    def is_greeting(self, event: object) -> bool:
        """Whether an event says nothing yet, so that it may be held back until it is known that no error follows."""
        return word_at(event, "type") in self.greetings

    def last_event_at(self, chunk: bytes, sent: bytes) -> int:
        """Where in a chunk of a stream the event begins that ends the stream; -1 for nowhere.

        `sent` are bytes that stand before the chunk. A text may contain the bytes of that event, but not at the start
        of a line, because JSON has no bare line ends inside.
        """
        before = sent[-_MARK:]
        data = before + chunk
        if self.last_event.search(data):  # rarely, and found much faster than the beginnings of all lines
            for found in _EVENT.finditer(data):
                is_at_line = found.start() > 0 or len(before) < _MARK
                if is_at_line and self.last_event.fullmatch(found[1]):
                    return max(found.start() - len(before), 0)
        return -1

    @abstractmethod
    def items_in(self, document: Any) -> Items:
        """What the model said in a reply, as a client would send it back; empty for no complete reply."""

    def is_usage_alone(self, event: object) -> bool:
        """Whether an event is there only because `usage_probe` has asked for it."""
        return False

    def capture(self, headers: Headers) -> Capture:
        """A capture for a reply with these headers."""
        return self.stream_capture() if is_event_stream(headers) else JsonCapture(self.items_in)

    # -- replies: what the proxy itself says

    def error_body(self, error: ProxyError) -> bytes:
        """An error of the proxy as the body of a reply."""
        return error.to_json()

    def error_event(self, error: ProxyError, sent: bytes) -> bytes:
        """An error of the proxy as the end of a stream, whose last bytes were `sent`."""
        document = json.loads(self.error_body(error))
        if not (isinstance(document, dict) and document.get("error")):
            document = json.loads(ProxyError.to_json(error))  # it stood for the upstream's own, in some other form
        return self.written_error(document, sent)

    @abstractmethod
    def written_error(self, document: Any, sent: bytes = b"") -> bytes:
        """The body of an error as an event."""

    @abstractmethod
    def beat(self, model: str, now: float) -> bytes:
        """A sign of life that changes nothing, in a stream of this model, at a time in seconds since the epoch."""

    def as_events(self, data: bytes, *, is_success: bool) -> bytes | None:
        """The events of a stream that say the same as a reply in one piece; None if the data is no such reply.

        `is_success` says what its status was.
        """
        document = json_or_none(data)
        if not isinstance(document, dict):
            return None
        # A response of the Responses API that failed has both an error and a status.
        if isinstance(document.get("error"), dict) and document.get("object") != "response":
            return self.written_error(document)
        return self.written_reply(document) if is_success else None

    @abstractmethod
    def written_reply(self, document: Mapping[str, Any]) -> bytes | None:
        """A reply as the events of its stream; None if the document is no reply."""

    # -- counting

    count_path = ""
    """The path at which clients ask what a request would cost; "" for none."""

    def counted(self, tokens: int) -> Mapping[str, object]:
        """The answer at that path, where the upstream has none."""
        return {"input_tokens": tokens}

    # -- the proxy's own calls

    prompt_members: tuple[str, ...]
    """The members that stand before the list in a prompt, which a question that continues a view needs too."""
    system_member = ""
    """The member for a system prompt; "" where that is a message."""
    own_members: Mapping[str, str] = {}
    """Further members of the body of each question, as JSON text."""
    no_tools = '"none"'
    """The choice, as JSON text, by which no tool may be called."""
    bridged: tuple[str, ...] = ()
    """The roles after which, where roles must alternate, a user message needs one of the assistant's before it."""
    gives_several_answers = False
    """Whether one question may ask for several answers."""
    lent_headers: tuple[bytes, ...] = (b"openai-",)
    """The beginnings of the headers that a call on behalf of a request copies from it, besides the credential."""

    def question(self, question: Question, limit: str) -> bytes:
        """The body that asks a model a question; `limit` names the member that bounds the answer.

        Members of a view that say nothing are left out, for some servers refuse `"system": null`.
        """
        members = {"model": json.dumps(question.model), limit: str(question.max_tokens), **self.own_members}
        members |= {name: value for name, value in question.members.items() if value.strip() != "null"}
        view = question.view or "[]"
        if question.view is None and question.system:
            if self.system_member:
                members[self.system_member] = json.dumps(question.system)
            else:
                view = json.dumps([{"role": "system", "content": question.system}])
        if question.has_tools:
            members["tool_choice"] = self.no_tools
        if question.n > 1:
            members["n"] = str(question.n)
        if question.temperature is not None:
            members["temperature"] = json.dumps(question.temperature)
        members[self.list_member] = self._continued(view, question)
        return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()

    def _continued(self, view: str, question: Question) -> str:
        """A view as JSON text, with the question at its end."""
        messages = loads(view) if question.alternates and self.bridged else []
        is_bridged = bool(messages) and str(messages[-1].get("role")) in self.bridged
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        added = [*([self.dialect.assistant(BRIDGE)] if is_bridged else ()), self.dialect.user(question.user)]
        head = view.rstrip().removesuffix("]").rstrip()
        between = "" if head.endswith("[") else ","
        return f"{head}{between}{','.join(map(json.dumps, added))}]"

    @abstractmethod
    def answers(self, document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
        """The answers in a reply, and why each ended in chat's words: `stop`, `length`; None if it has none.

        Each is said to have cost `tokens`.
        """

    # -- the memory tool (`proxy.endpoints.hidden_calls`)

    splicer: type[Splicer[Any]]

    @abstractmethod
    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> str:
        """A tool, as JSON text; `parameters` is a schema."""

    def tool_use(self, values: Values) -> ToolUse | None:
        """What a request says of tools; None if they are in no known form."""
        tools, choice = values.get("tools"), values.get("tool_choice")
        if not (tools is None or isinstance(tools, list)):
            return None
        is_free = (choice.get("type") if isinstance(choice, Mapping) else choice) in (None, "auto")
        runs_calls = is_free and self.has_one_choice(values) and values.get("background") is not True
        return ToolUse(frozenset(map(_tool_name, tools or ())), bool(tools), self.takes_tool(values), runs_calls)

    @abstractmethod
    def takes_tool(self, values: Values) -> bool:
        """Whether the tool may be called along with what a request offers.

        A request without tools that wants a reply by a schema is a side call, such as for a title, and gets none.
        """

    def tool_members(self, tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:
        """The members of a body, as JSON text, that offer `tools`, the tool among them.

        In the last request the tool may not be called any more. It stays, but no tool may be called, not even the
        client's: a shorter list of tools would change the beginning of the prompt, which would lose the upstream's
        cache and invalidate the thinking that is bound to it.
        """
        return {"tools": tools, "tool_choice": self.no_tools} if is_last else {"tools": tools}

    @abstractmethod
    def results(self, found: Sequence[tuple[str, str]]) -> Items:
        """The elements that answer hidden calls: for each its id and the text of its result."""

    @abstractmethod
    def said(self, data: bytes) -> Said | None:
        """What the model said in a reply in one piece; None where it is no reply of a model."""

    @abstractmethod
    def joined(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
        """A reply in one piece as the client gets it: without hidden calls, with the usage of `earlier` replies.

        Their text is added too if the reply `keeps_text`. Where none of that applies, the bytes are unchanged.
        """


def _tool_name(tool: object) -> str:
    """The name of a tool, which chat has inside of a member that is called as the tool's type."""
    return word_at(object_at(tool, word_at(tool, "type") or "function") or tool, "name")
