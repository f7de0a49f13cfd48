"""What an endpoint is: the part of a wire protocol that belongs to the shell.

Theory of operation. A protocol has two halves. Its dialect, in the pure core, reads and writes the elements of a
message list. Its endpoint knows the rest: which member of a body holds the list, which other members cost prompt
tokens, what names a session, how a reply is read, what errors look like. All other code asks the endpoint of a request
and names no member itself, so a new protocol is one more folder here and changes nothing elsewhere.

An endpoint has no state, and there is one for each protocol. The endpoint of a request is found by its path and stays
with its body (`proxy.bodies.wire.Body`). Its answers about the members around the list are cached for all requests
with the same members (`proxy.bodies.scanning.Envelope`), and its answers about an element for each element. So a
request that is mostly known asks it almost nothing.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from proxy.controls import EXTENSION, Member
from proxy.errors import ProxyError
from proxy.http.headers import BEARER, Headers, is_event_stream
from proxy.protocols.hidden_calls import Said, Splicer, ToolUse
from proxy.protocols.replies import Capture, Items, JsonCapture, StreamCapture, TextPlaces
from proxy.reasons import Reason
from proxy.tokens.counter import Counter
from proxy.values import object_at, word_at
from strategies.core.client_compaction import PROMPT_WORDS, is_prompt
from strategies.core.effects import Answer, Failure
from strategies.core.messages import Dialect, dump
from strategies.core.parsing import loads
from strategies.core.transcript import Transcript
from strategies.core.view import BRIDGE

_NO_TOOLS = re.compile(r"\s*(null|\[\s*\])\s*")


@dataclass(frozen=True, slots=True)
class Question:
    """What one of the proxy's own calls asks a model.

    There are two forms. In the isolated form a question is a system and a user message, without tools. In the continued
    form it is a view, byte for byte, with one more user message and with the request's other members of the prompt, so
    that the upstream's prompt cache of the view is used.
    """

    model: str
    system: str  # the system message; left out if there is a view
    user: str
    max_tokens: int  # the maximum number of tokens of one answer
    view: str | None = None  # the message list to continue, as JSON text
    members: Mapping[str, str] = field(default_factory=dict)
    """The members that precede the list in the prompt (`Endpoint.prompt_members`), as JSON text."""
    alternates: bool = False  # whether the server refuses two messages of one role in a row
    n: int = 1  # the number of answers
    temperature: float | None = None
    low_effort: bool = False  # whether the model is asked to reason little or not at all
    streams: bool = False  # whether the answer comes as a stream
    without: frozenset[str] = frozenset()  # the members of the proxy's own that the server refuses

    @property
    def has_tools(self) -> bool:
        """Whether its members offer tools, none of which may be called."""
        return _NO_TOOLS.fullmatch(self.members.get("tools", "null")) is None


_EVENT = re.compile(rb'^(?:event: ?|data: ?\{\s*"type"\s*:\s*")([a-z_.]+)', re.MULTILINE)
_MARK = 64  # bytes before a chunk that are searched too, because the last event may begin there
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?=(?:data|event|id|retry)?:)")
_ANY_SESSION_HEADER = re.compile(rb"x-[a-z0-9-]+-session-id")

Values = Mapping[str, Any]  # the members of a request body except the message list, parsed


class SessionHint(NamedTuple):
    """An id that a client gives its conversation."""

    source: str  # the header or the member of the body that holds it
    id: object  # the value as received; it counts only if it is a string
    is_weak: bool = False  # whether it counts only if the request continues the stored history


class Compacting(Enum):
    """How a client asks for a compaction of its own."""

    PROMPT = auto()  # by its last message, which is no part of the conversation
    SIGNAL = auto()  # by what is no message: a member of the body, an item that is a signal


class MalformedElement(ValueError):
    """A JSON value that is no element of the list. The text follows the name of the element: `must be …`."""

    def __init__(self, problem: str, member: str = "") -> None:
        """`member` is the path from the element to the wrong value, such as `.role`."""
        super().__init__(problem)
        self.member = member


def session_headers(headers: Headers) -> Iterator[SessionHint]:
    """The ids in headers named `x-…-session-id`, whichever tool sends them."""
    for name, value in headers:
        if name.endswith(b"-session-id") and _ANY_SESSION_HEADER.fullmatch(name):
            yield SessionHint(name.decode("latin-1"), value.decode("latin-1"))


class Endpoint(ABC):
    """One wire protocol, as far as the shell must know it. Members that most protocols share have OpenAI's defaults."""

    dialect: Dialect  # reads and writes the elements of its message lists
    path: str  # the path that clients send requests to, and to which they are forwarded
    path_ending: str  # how other paths for it end, such as those with a provider's prefix

    # -- requests: the list

    list_member = "messages"  # the member of a body that holds the list of elements
    controls_member: Member = EXTENSION  # the member that says what is asked of the proxy itself
    list_is_optional = False  # whether a body may have no list, or an empty one
    from_text: Callable[[str], Mapping[str, object]] | None = None
    """Makes an element of a string, if the protocol accepts a string instead of the list."""
    text_parts: tuple[str, ...]
    """The types of parts that cost no more tokens than they have bytes; a picture of a few bytes may cost thousands."""

    def look(self, value: object) -> tuple[str, bool]:
        """The role of a new element, and whether it is only text, which costs no more tokens than it has bytes.

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
        """Why a request must pass unchanged because the server holds part of its history; None for nearly all requests.

        `roles` are those of the elements, as `look` returns them.
        """
        return None

    # -- requests: the members around the list

    counted_members: tuple[str, ...]
    """The members that cost prompt tokens: tools, and a system prompt outside of the list."""
    counter: type[Counter]  # counts the tokens of messages and of these members
    reply_limits: tuple[str, ...]
    """The members that bound the length of the reply, in tokens; the first one that is set counts."""

    def offers_tools(self, values: Values, systems: Iterable[bytes]) -> bool:
        """Whether a request offers tools to the model, in its members or in the system messages of its list."""
        return bool(values.get("tools"))

    def keeps_reasoning(self, values: Values) -> bool:
        """Whether thinking is in the manual mode, in which an unfinished turn must begin with its thinking.

        Only models of Anthropic that do not check what comes before the thinking have this mode.
        """
        return object_at(values, "thinking").get("type") == "enabled"

    def has_one_choice(self, values: Values) -> bool:
        """Whether a request asks for one reply, not for several to choose from."""
        return True

    format_place: tuple[str, ...] = ()  # the members, one in the other, that say in which form a reply is wanted
    added_members: tuple[str, ...] = ()
    """The members that the proxy may add, each of which is one of a profile; a refusal that names one takes it back."""

    def usage_probe(self, values: Values) -> Mapping[str, str]:
        """The members, as JSON text, that make a stream report its usage; empty if it is asked to anyway, or cannot."""
        return {}

    def with_marker(self, values: Values, elements: Sequence[bytes], place: int) -> bytes | None:
        """The element at which the head of a view ends, with a prompt-cache marker added; None for no marker.

        `elements` is the view, each element as bytes, and `place` the index of that element.
        """
        return None

    def aside(self, headers: Headers, values: Values, transcript: Transcript) -> Compacting | None:
        """How a request asks for a compaction of the client's own; None for nearly all requests."""
        last = transcript.chain[-1] if transcript.chain else None
        # The bytes tell it of nearly all messages: a body is parsed anew, which may take long.
        if last is None or not [words for words in PROMPT_WORDS if words in last.data]:
            return None
        return Compacting.PROMPT if is_prompt(last) else None

    management_member = ""
    """The member by which a client has the server compact its history at a size; "" where that is not read."""

    def compact_threshold(self, values: Values) -> int | None:
        """The tokens of a prompt at which a request wants that; None if it does not."""
        return None

    # -- requests: headers

    version_headers: Sequence[tuple[bytes, bytes]] = ()  # which every request must have
    key_header: tuple[bytes, bytes] = BEARER  # the header that carries an API key, and the text before the key in it

    def session_hints(self, headers: Headers, values: Values) -> Iterator[SessionHint]:
        """The ids that name the session, in order of precedence. Header names are in lower case."""
        yield from session_headers(headers)
        metadata = values.get("metadata")
        if isinstance(metadata, Mapping):
            yield SessionHint("metadata.session_id", metadata.get("session_id"))
        yield SessionHint("prompt_cache_key", values.get("prompt_cache_key"), is_weak=True)

    def is_subagent(self, headers: Headers) -> bool:
        """Whether the client is an agent that another agent has started; it gets no memory."""
        return False

    def asks_for_long(self, headers: Headers) -> bool:
        """Whether a request asks for a window of a million tokens, which some of Claude's models have as a beta."""
        betas = [value for name, value in headers if name == b"anthropic-beta"]
        return b"context-1m" in b",".join(betas)

    # -- replies: how they are read

    answer: re.Pattern[bytes]
    """Matches something that a normal reply, or an event of one, always has and an error never has."""
    greetings: tuple[str, ...] = ()  # the types of the events that come before the reply says anything
    last_event: re.Pattern[bytes]  # matches the names of the events that end a stream
    last_event_has_data = False  # whether that event holds part of the reply, so that all of it must be read first
    text_places: TextPlaces  # where its replies have their text, for `proxy.protocols.replies.ending_in`
    stream_capture: type[StreamCapture]  # captures a streamed reply

    def is_greeting(self, event: object) -> bool:
        """Whether an event says nothing yet, so it may be held back until it is known that no error follows."""
        return word_at(event, "type") in self.greetings

    def last_event_at(self, chunk: bytes, sent: bytes) -> int:
        """The position in a chunk at which the event that ends the stream begins; -1 if it does not.

        `sent` are the bytes before the chunk. A text may contain the bytes of that event, but not at the start of a
        line, because JSON strings contain no bare line ends.
        """
        before = sent[-_MARK:]
        data = before + chunk
        if self.last_event.search(data):  # rarely true, and much faster than looking at all lines
            for match in _EVENT.finditer(data):
                is_at_line = match.start() > 0 or len(before) < _MARK
                if is_at_line and self.last_event.fullmatch(match[1]):
                    return max(match.start() - len(before), 0)
        return -1

    @abstractmethod
    def items_in(self, document: Any) -> Items:
        """The elements of a reply, as a client would send them back; empty if it is no complete reply."""

    def is_usage_alone(self, event: object) -> bool:
        """Whether an event was sent only because of `usage_probe`."""
        return False

    def capture(self, headers: Headers) -> Capture:
        return self.stream_capture() if is_event_stream(headers) else JsonCapture(self.items_in)

    # -- replies: those of the proxy itself

    def error_body(self, error: ProxyError) -> bytes:
        """The body of the reply for an error of the proxy."""
        return error.to_json()

    def error_event(self, error: ProxyError, sent: bytes) -> bytes:
        """The event for an error of the proxy, to end a stream whose last bytes were `sent`."""
        document = json.loads(self.error_body(error))
        if not (isinstance(document, dict) and document.get("error")):
            document = json.loads(ProxyError.to_json(error))  # the body was the upstream's own, in another form
        return self.written_error(document, sent)

    @abstractmethod
    def written_error(self, document: Any, sent: bytes = b"") -> bytes:
        """The event for the body of an error."""

    beat = b": keep-alive\n\n"  # what changes nothing in a stream, as a sign of life

    # -- counting

    compact_path = ""  # the path at which clients have their list compacted by the server; "" if there is none
    count_path = ""  # the path at which clients ask how many tokens a request has; "" for none

    def counted(self, tokens: int) -> Mapping[str, object]:
        """The proxy's own answer at that path, if the upstream has none."""
        return {"input_tokens": tokens}

    # -- the proxy's own calls

    prompt_members: tuple[str, ...]
    """The members that precede the list in a prompt. A question that continues a view must send them too."""
    system_member = ""  # the member for a system prompt; "" if that is a message
    own_members: Mapping[str, str] = {}  # other members of the body of every question, as JSON text
    low_effort: Mapping[str, str]  # the members that ask a model to reason little or not at all, as JSON text
    no_tools = '"none"'  # the value of `tool_choice`, as JSON text, that forbids calls
    bridged: tuple[str, ...] = ()
    """If roles must alternate, an assistant's message must come between one of these roles and a user message."""
    gives_several_answers = False  # whether one question may ask for several answers
    lent_headers: tuple[bytes, ...] = (b"openai-beta",)
    """Prefixes of the request headers, besides the credential, that are copied to the proxy's own calls."""

    def asking_members(self, question: Question) -> dict[str, str]:
        """What a question says of its own, as JSON text, beside the prompt: a server that refuses it may do without."""
        limit = next((name for name in self.reply_limits if name not in question.without), self.reply_limits[0])
        members = {"tool_choice": self.no_tools} if question.has_tools else {}
        members |= {limit: str(question.max_tokens), **self.own_members}
        if question.low_effort:
            members |= self.low_effort
        if question.streams:
            members |= {"stream": "true", **self.usage_probe({})}
        if question.n > 1:
            members["n"] = str(question.n)
        if question.temperature is not None:
            members["temperature"] = json.dumps(question.temperature)
        return {name: value for name, value in members.items() if name not in question.without}

    def question(self, question: Question) -> bytes:
        """The body that asks a model a question.

        Members that are null are left out, because some servers refuse `"system": null`.
        """
        members = {"model": json.dumps(question.model)}
        members |= {name: value for name, value in question.members.items() if value.strip() != "null"}
        members |= self.asking_members(question)
        view = question.view or "[]"
        if question.view is None and question.system:
            if self.system_member:
                members[self.system_member] = json.dumps(question.system)
            else:
                view = json.dumps([{"role": "system", "content": question.system}])
        members[self.list_member] = self._continued(view, question)
        return ("{" + ",".join(f'"{name}":{value}' for name, value in members.items()) + "}").encode()

    def _continued(self, view: str, question: Question) -> str:
        """The view as JSON text, with the question added at its end."""
        messages = loads(view) if question.alternates and self.bridged else []
        is_bridged = bool(messages) and str(messages[-1].get("role")) in self.bridged
        # ASCII, because a transcript may hold lone surrogates, which UTF-8 cannot.
        added = [*([self.dialect.assistant(BRIDGE)] if is_bridged else ()), self.dialect.user(question.user)]
        head = view.rstrip().removesuffix("]").rstrip()
        between = "" if head.endswith("[") else ","
        return f"{head}{between}{','.join(map(json.dumps, added))}]"

    def in_one_piece(self, data: bytes) -> bytes:
        """A reply as it would be in one piece, if it is a stream; one with an error as it came."""
        if (start := _STREAM.match(data)) is None:
            return data
        splicer = self.splicer(runs_calls=False)
        splicer.feed(data[start.end() :] + b"\n\n")
        return dump(splicer.document).encode("utf-8", "surrogatepass") if splicer.document else data

    @abstractmethod
    def answers(self, document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
        """The answers in a reply, each with the finish reason in chat's words (`stop`, `length`); None if it has none.

        `tokens` is what the call cost; each answer carries it.
        """

    # -- the memory tool (`proxy.protocols.hidden_calls`)

    splicer: type[Splicer[Any]]

    @abstractmethod
    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> str:
        """The definition of a tool, as JSON text; `parameters` is a JSON schema."""

    def tool_use(self, values: Values) -> ToolUse | None:
        """What a request says about tools; None if they have an unknown form."""
        tools, choice = values.get("tools"), values.get("tool_choice")
        if not (tools is None or isinstance(tools, list)):
            return None
        is_free = (choice.get("type") if isinstance(choice, Mapping) else choice) in (None, "auto")
        runs_calls = is_free and self.has_one_choice(values) and values.get("background") is not True
        return ToolUse(frozenset(map(_tool_name, tools or ())), bool(tools), self.takes_tool(values), runs_calls)

    @abstractmethod
    def takes_tool(self, values: Values) -> bool:
        """Whether the memory tool can be added to a request.

        A request without tools that wants a reply in a JSON schema is a side call, such as one for a title, and does
        not get the tool.
        """

    def tool_members(self, tools: str, *, has_client_tools: bool, is_last: bool) -> dict[str, str]:
        """The members of a body, as JSON text, that offer `tools`, which include the memory tool.

        In the last request the memory tool may no longer be called. It stays in the list, and no tool may be called,
        not even the client's. A shorter list would change the beginning of the prompt: the upstream's cache would be
        lost, and the thinking that is bound to the prompt would be invalid.
        """
        return {"tools": tools, "tool_choice": self.no_tools} if is_last else {"tools": tools}

    @abstractmethod
    def results(self, found: Sequence[tuple[str, str]]) -> Items:
        """The elements that answer hidden calls, given the id of each call and the text of its result."""

    @abstractmethod
    def said(self, data: bytes) -> Said | None:
        """What the model said in a reply in one piece; None if it is no reply of a model."""

    @abstractmethod
    def joined(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
        """A reply in one piece as the client gets it: without hidden calls, with the usage of the `earlier` replies.

        With `keeps_text` the text of the earlier replies is added too. If nothing changes, the bytes are the same.
        """


def _tool_name(tool: object) -> str:
    """The name of a tool; in chat it is inside a member that is named after the tool's type."""
    return word_at(object_at(tool, word_at(tool, "type") or "function") or tool, "name")
