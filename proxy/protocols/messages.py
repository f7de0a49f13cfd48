"""The endpoint of Messages: how requests, replies and events are read, and how the proxy's own are written. Pure.

A request has at most four markers of the prompt cache, and those for an hour come before those for 5 minutes. A client
marks where its own history may be cached. In a view the markers of replaced messages are gone. So the head, which stays
the same from turn to turn, gets a marker, if the client marks anything and uses fewer than four.

A later reply of a search (`hidden_calls`) continues without a `message_start`, and its blocks are numbered after those
that the client has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.errors import ContextLengthExceeded, ProxyError
from proxy.http.headers import ANTHROPIC_VERSION, Headers
from proxy.protocols.counter import PER_MESSAGE, REPLY_PRIMING, PartsCounter, loaded_tools
from proxy.protocols.endpoint import Compacting, Endpoint, SessionHint, Values, session_headers
from proxy.protocols.hidden_calls import NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, Splicer, rewritten, with_usage
from proxy.protocols.replies import Items, Json, StreamCapture, TextPlaces, named_event
from proxy.reasons import Reason
from proxy.tokens.counter import Opaque
from proxy.tokens.models import claude_version
from proxy.values import count_at, json_or_none, list_at, object_at, objects_at, word_at
from strategies.core.effects import Answer, Failure
from strategies.core.messages import dump
from strategies.core.transcript import Transcript
from strategies.dialects.messages import MESSAGES, THINKING

ANSWER = re.compile(rb'"type"\s*:\s*"(?:message(?:_start|_delta|_stop)?|content_block_(?:start|delta|stop)|ping)"')
_GROWING = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}
"""Deltas that are pieces of a text: the member that holds the piece, and the member of the block that it extends."""


def text_of(document: Any) -> str:
    """The text of a message: its text blocks, joined."""
    return "".join(word_at(block, "text") for block in objects_at(document, "content"))


def _text_of_event(document: Any) -> str:
    delta = object_at(document, "delta")
    return word_at(delta, "text") if delta.get("type") == "text_delta" else ""


TEXT_PLACES = TextPlaces(b"text", text_of, _text_of_event)


@dataclass(slots=True)
class StreamedMessage:
    """The message that the events so far add up to."""

    stop_reason: str | None = None
    usage: Json = field(default_factory=dict)
    is_over: bool = False
    is_broken: bool = False
    _blocks: dict[int, Json] = field(default_factory=dict)
    _pieces: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    """For each block, the pieces of the members that come in pieces."""

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event; an event of an unknown kind changes nothing."""
        match event.get("type"):
            case "message_start":
                self._add_usage(object_at(event.get("message"), "usage"))
            case "content_block_start":
                self._blocks[count_at(event, "index")] = dict(object_at(event, "content_block"))
            case "content_block_delta":
                self._add_delta(count_at(event, "index"), object_at(event, "delta"))
            case "message_delta":
                self.stop_reason = word_at(event.get("delta"), "stop_reason") or self.stop_reason
                self._add_usage(object_at(event, "usage"))
            case "message_stop":
                self.is_over = True
            case "error":
                self.is_broken = True

    @property
    def blocks(self) -> list[Json]:
        """The blocks so far; the input of a call is empty if it is no JSON object."""
        return [self._whole(index, block) for index, block in self._blocks.items()]

    def block(self, index: int) -> Json:
        return self._blocks.get(index, {})

    def _whole(self, index: int, block: Json) -> Json:
        texts = {member: "".join(pieces) for member, pieces in self._pieces.get(index, {}).items()}
        if "input" not in texts:
            return {**block, **{member: f"{block.get(member) or ''}{text}" for member, text in texts.items()}}
        arguments = json_or_none(texts["input"])
        return {**block, "input": arguments if isinstance(arguments, dict) else {}}

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        block, kind = self._blocks.setdefault(index, {"type": "text"}), str(delta.get("type"))
        if kind in _GROWING:
            came_as, member = _GROWING[kind]
            self._pieces.setdefault(index, {}).setdefault(member, []).append(str(delta.get(came_as) or ""))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        else:
            block.update({key: value for key, value in delta.items() if key != "type"})

    def _add_usage(self, usage: Mapping[str, Any]) -> None:
        self.usage.update({key: value for key, value in usage.items() if value is not None})


@dataclass(slots=True)
class MessagesCapture(StreamCapture):
    """Captures a stream, which is complete if it has a stop reason and no error came."""

    _message: StreamedMessage = field(default_factory=StreamedMessage)

    def _add(self, data: str) -> None:
        event = json_or_none(data)
        if isinstance(event, Mapping):
            self._message.add(event)

    def items(self) -> Items:
        if self._message.is_broken or self._message.stop_reason is None:
            return ()
        return items_in({"content": self._message.blocks})


def items_in(document: Any) -> Items:
    """A message without empty texts, which servers do not accept back."""
    blocks = [block for block in objects_at(document, "content") if block.get("type") != "text" or block.get("text")]
    return ({"role": "assistant", "content": blocks},) if blocks else ()


# -- hidden calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaidMessage(Said):
    complete = (None, "end_turn", "stop_sequence", "tool_use")
    blocks: Items

    @property
    def text(self) -> str:
        return text_of({"content": self.blocks})

    @property
    def memory_calls(self) -> Items:
        return [block for block in self.blocks if is_hidden(block)]

    @property
    def has_client_calls(self) -> bool:
        return any(block.get("type") == "tool_use" and not is_hidden(block) for block in self.blocks)

    def hidden_round(self, prefix: str) -> HiddenRound:
        """The message of a hidden round: the model's own, or only its thinking and memory calls.

        Only these if the client's tools are called too, because the client's own message has the rest.
        """
        sent = [
            _sendable(block, f"{prefix}_{place}") if is_hidden(block) else block
            for place, block in enumerate(self.blocks)
        ]
        calls = [HiddenCall(block["id"], block["input"]) for block in sent if is_hidden(block)]
        if is_alone := not self.has_client_calls:
            kept = [block for block in sent if not is_empty_text(block)]
        else:
            kept = [block for block in sent if is_hidden(block) or block.get("type") in THINKING]
        return HiddenRound([{"role": "assistant", "content": kept}], self.text if is_alone else "", calls)


def _sendable(call: Mapping[str, Any], name: str) -> Json:
    """A call in the form that an upstream accepts: with an id and an input that is an object."""
    arguments = call.get("input")
    return {**call, "id": call.get("id") or name, "input": arguments if isinstance(arguments, dict) else {}}


def is_hidden(block: Mapping[str, Any]) -> bool:
    """Whether a block is a call of the memory tool."""
    return block.get("type") == "tool_use" and block.get("name") == NAME


def is_empty_text(block: Mapping[str, Any]) -> bool:
    """Whether a block is an empty text, which servers do not accept back."""
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def says_nothing(blocks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all blocks are thinking or empty texts."""
    return all(is_empty_text(block) or block.get("type") in THINKING for block in blocks)


def stop_for_client(reason: object, *, has_calls: bool) -> object:
    """The stop reason for the client; `has_calls` tells whether it sees any calls."""
    return "end_turn" if reason == "tool_use" and not has_calls else reason


class MessagesSplicer(Splicer[SaidMessage]):
    """Joins replies into one stream."""

    answer = ANSWER
    _sent_blocks = 0
    _has_sent_start = False
    _has_answer = False

    def _reset(self) -> None:
        super()._reset()
        self._message = StreamedMessage()
        self._numbers: dict[int, int | None] = {}

    @property
    def said(self) -> SaidMessage:
        """What the model has said in the reply so far."""
        return SaidMessage(self._message.blocks, finish=self._message.stop_reason, usage=self._message.usage or None)

    @property
    def document(self) -> Json:
        said = self.said
        return {} if self._failed else {"content": said.blocks, "stop_reason": said.finish, "usage": said.usage}

    def _passed(self, lines: list[bytes], body: Json) -> bytes:
        message = self._message
        message.add(body)
        self.is_over, self._finish, self._failed = message.is_over, message.stop_reason, message.is_broken
        passed = self._passed_body(body)
        added = b"" if passed is None else self._answer_before(body)
        return added + rewritten(lines, body, passed)

    def _passed_body(self, body: Json) -> Json | None:
        """The event for the client; None for nothing."""
        match body.get("type"):
            case "message_start":
                is_first, self._has_sent_start = not self._has_sent_start, True
                return body if is_first else None
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._passed_block(body)
            case "message_delta":
                return None if self.is_continued else self._passed_end(body)
            case "message_stop":
                return None if self.is_continued else body
        return body

    def _passed_block(self, body: Json) -> Json | None:
        index = count_at(body, "index")
        if index not in self._numbers:
            hides = is_hidden(self._message.block(index))
            self._numbers[index] = None if hides else self._sent_blocks
            self._sent_blocks += not hides
        number = self._numbers[index]
        if number is None:
            return None
        self._has_sent = True
        return body if number == body.get("index") else {**body, "index": number}

    def _passed_end(self, body: Json) -> Json:
        """The event that ends a reply, with the stop reason and the usage for the client."""
        self._has_sent = True
        delta = body.get("delta")
        if isinstance(delta, Mapping) and self.said.memory_calls:
            reason = stop_for_client(delta.get("stop_reason"), has_calls=self.said.has_client_calls)
            body = {**body, "delta": {**delta, "stop_reason": reason}}
        return with_usage(body, self._earlier)

    def _answer_before(self, body: Mapping[str, Any]) -> bytes:
        """The events of a text block before the end of a message that otherwise has only hidden calls and thinking."""
        is_end = body.get("type") == "message_delta" and not self._has_answer
        if not is_end or not (self._earlier or self.said.memory_calls):
            return b""
        self._has_answer = True
        blocks = [block for said in (*self._earlier, self.said) for block in said.blocks if not is_hidden(block)]
        if not says_nothing(blocks):
            return b""
        number, self._sent_blocks = self._sent_blocks, self._sent_blocks + 1
        start = {"type": "content_block_start", "index": number, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": number, "delta": {"type": "text_delta", "text": NO_ANSWER}}
        return b"".join(map(named_event, (start, delta, {"type": "content_block_stop", "index": number})))


PER_CALL = 12  # tokens of a call besides its name and its input: the name of the block, its ids and its tags
TOOLS_PROMPT = 340  # the system prompt for tools; documented as 290 to 350 tokens, depending on the model
_FACTOR, _NEWER_FACTOR, _NEWER = 1.18, 1.53, (4, 7)
"""Tokens for each token of o200k: in models up to 4.6, and in those since 4.7, which have another tokenizer."""


# -- tokens --------------------------------------------------------------------------------------------------------


class MessagesCounter(PartsCounter):
    """Counts the prompt tokens of a Messages request.

    Theory of operation. Anthropic publishes no tokenizer, so texts are counted with one of OpenAI's, times a factor for
    the family of the model; others have measured that there are two tokenizers. The result is right to within about a
    fifth, until calibration has seen some replies. Nothing was published about framing either. It is assumed to be
    three tokens for each message, as in chat, and the end and the beginning of a block for each call and each result.
    The model sees tools as JSON, after a system prompt of the vendor's own.

    Thinking counts if its text came back; otherwise only the vendor knows its length. Tools whose loading is deferred
    cost nothing until a `tool_reference` in the transcript has loaded them.
    """

    dialect = MESSAGES
    protocol = "messages/"

    @classmethod
    def factor_of(cls, plain: str) -> float:
        """1 for models of other vendors; a Claude model without a version is assumed to be new."""
        version = claude_version(plain)
        if version is None:
            return 1.0
        return _FACTOR if version < _NEWER else _NEWER_FACTOR

    def count(self, body: Mapping[str, object], opaque: Opaque) -> int:
        return PER_MESSAGE + self._content(body.get("content"), opaque)

    def count_outside(
        self, values: Mapping[str, object], opaque: Opaque, *, has_system: bool = False, loaded: Collection[str] = ()
    ) -> int:
        """The system prompt, tools, a schema, priming."""
        total = REPLY_PRIMING + self._content(values.get("system"), opaque)
        if tools := list(loaded_tools(list_at(values, "tools"), loaded)):
            total += TOOLS_PROMPT + sum(self.json(_shown(tool)) for tool in tools)
            opaque.unpriced |= any(isinstance(tool, Mapping) and tool.get("type") == "mcp_toolset" for tool in tools)
        form = object_at(values, "output_config").get("format")
        return total + (self.json(form) if isinstance(form, Mapping) else 0)

    def _part(self, block: object, opaque: Opaque) -> int:
        if not isinstance(block, Mapping):
            return self.string(block)
        match block.get("type"):
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                return PER_CALL + self.string(block.get("name")) + self.json(block.get("input"))
            case "tool_result" | "mcp_tool_result":
                return PER_CALL + self._content(block.get("content"), opaque)
            case "document":
                return self._document(block, opaque)
            case "web_fetch_tool_result" if document := object_at(object_at(block, "content"), "content"):
                return PER_CALL + self._document(document, opaque)
            case str(kind) if kind.endswith(_TEXTS):
                return PER_CALL + self.loose({name: block[name] for name in block.keys() - _UNSEEN}, opaque)
            case _:
                return super()._part(block, opaque)

    def _document(self, block: Mapping[str, object], opaque: Opaque) -> int:
        fields = object_at(block, "source")
        named = self.string(block.get("title")) + self.string(block.get("context"))
        if fields.get("type") in ("text", "content"):
            return named + self._content(fields.get("data", fields.get("content")), opaque)
        return named + self.file(fields.get("data"), opaque)


_TEXTS = ("_tool_result", "search_result", "tool_reference", "compaction")
"""Ends of the types of blocks that are text: what the vendor's own tools have found, and its own summaries."""
_UNSEEN = ("type", "cache_control", "tool_use_id")


def _shown(tool: object) -> object:
    """The members of a tool that the model sees."""
    if not isinstance(tool, Mapping):
        return tool
    return {key: tool[key] for key in ("name", "description", "input_schema", "type") if key in tool}


_SESSION, _AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_FINISHES = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


# -- the endpoint --------------------------------------------------------------------------------------------------


class MessagesEndpoint(Endpoint):
    """The Messages API."""

    dialect = MESSAGES
    path = "/v1/messages"
    path_ending = "/v1/messages"
    text_parts = ("text", "thinking", "tool_use", "server_tool_use", "mcp_tool_use")
    counted_members = ("system", "tools", "tool_choice", "output_config")
    counter = MessagesCounter
    reply_limits = ("max_tokens",)
    version_headers = (ANTHROPIC_VERSION,)
    key_header = (b"x-api-key", b"")
    answer = ANSWER
    greetings = ("message_start", "ping", "content_block_stop")  # a block that ends here was empty
    last_event = re.compile(rb"message_stop")
    text_places = TEXT_PLACES
    stream_capture = MessagesCapture
    count_path = "/v1/messages/count_tokens"
    prompt_members = ("system", "tools")
    system_member = "system"
    low_effort: Mapping[str, str] = {"thinking": '{"type":"disabled"}'}
    no_tools = '{"type":"none"}'
    bridged = ("user",)
    lent_headers = (b"anthropic-version", b"anthropic-beta")
    splicer = MessagesSplicer
    beat = named_event({"type": "ping"})

    def _is_text(self, part: object) -> bool:
        if isinstance(part, dict) and part.get("type") == "tool_result":
            return all(map(self._is_text, list_at(part, "content")))
        if isinstance(part, dict) and part.get("type") == "thinking":
            return bool(part.get("thinking"))  # else it is encrypted
        return super()._is_text(part)

    def server_state(self, values: Values, roles: Iterable[str]) -> Reason | None:
        """The server may keep the history as a thread."""
        return Reason.SERVER_STATE if values.get("thread") else None

    def with_marker(self, values: Values, elements: Sequence[bytes], place: int) -> bytes | None:
        automatic = values.get(_KEY)
        before = [*_markers(values.get("tools")), *_markers(values.get("system")), *_marked(elements[:place])]
        after = [*_marked(elements[place + 1 :]), *([automatic] if isinstance(automatic, Mapping) else ())]
        if not (before or after) or len(before) + len(after) >= MAX_MARKERS:
            return None
        return _with_marker(elements[place], before[-1] if before else after[0])

    def aside(self, headers: Headers, values: Values, transcript: Transcript) -> Compacting | None:
        is_signal = isinstance(values.get("compaction"), Mapping)
        return Compacting.SIGNAL if is_signal else super().aside(headers, values, transcript)

    # -- headers

    def session_hints(self, headers: Headers, values: Values) -> Iterator[SessionHint]:
        """The ids in session headers, and the one inside the user's id, which Claude Code writes as JSON.

        A subagent of Claude Code sends the session of the agent that started it, and its own id in another header.
        """
        named = dict(reversed(headers))
        if session := named.get(_SESSION):
            parts = (session, named[_AGENT]) if named.get(_AGENT) else (session,)
            yield SessionHint(_SESSION.decode(), b"/".join(parts).decode("latin-1"))
        yield from session_headers(headers)
        user = word_at(values.get("metadata"), "user_id")
        inner = json_or_none(user) if user.startswith("{") else None
        if isinstance(inner, Mapping):
            yield SessionHint("metadata.user_id", inner.get("session_id"))

    def is_subagent(self, headers: Headers) -> bool:
        """Whether the client is a subagent of Claude Code."""
        return any(name == _AGENT and value for name, value in headers)

    # -- replies

    def is_greeting(self, event: object) -> bool:
        """Whether an event says nothing yet, also if it begins a text that has no words."""
        block = object_at(event, "content_block")
        begins_text = word_at(event, "type") == "content_block_start" and word_at(block, "type") == "text"
        return (begins_text and not word_at(block, "text")) or super().is_greeting(event)

    def items_in(self, document: Any) -> Items:
        return items_in(document)

    def error_body(self, error: ProxyError) -> bytes:
        """The body for an error; an error that carries the upstream's own body leaves that unchanged.

        Clients compact their history if a message has the words `prompt is too long`, so ours has them too.
        """
        own = error.to_json()
        if word_at(json_or_none(own), "type") == "error":
            return own
        is_too_long = isinstance(error, ContextLengthExceeded)
        message = f"prompt is too long: {error.message}" if is_too_long else error.message
        kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        members = {"type": kind, "message": message, "param": error.param, "code": error.code}
        return json.dumps({"type": "error", "error": members}).encode()

    def written_error(self, document: Any, sent: bytes = b"") -> bytes:
        return named_event({**document, "type": "error"})

    def answers(self, document: Mapping[str, Any], tokens: int) -> Sequence[Answer | Failure] | None:
        if not isinstance(document.get("content"), list):
            return None
        reason = str(document.get("stop_reason"))
        called = any(block.get("type") == "tool_use" for block in objects_at(document, "content"))
        reasoned = any(block.get("type") in THINKING for block in objects_at(document, "content"))
        return [Answer(text_of(document), _FINISHES.get(reason, reason), tokens, called, reasoned)]

    # -- the memory tool

    def tool(self, name: str, description: str, parameters: Mapping[str, Any]) -> str:
        return dump({"name": name, "description": description, "input_schema": parameters})

    def takes_tool(self, values: Values) -> bool:
        return bool(values.get("tools") or not object_at(values, "output_config").get("format"))

    def results(self, found: Sequence[tuple[str, str]]) -> Items:
        content = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in found]
        return [{"role": "user", "content": content}]

    def said(self, data: bytes) -> SaidMessage | None:
        body = json_or_none(data)
        if not isinstance(body, dict) or not isinstance(body.get("content"), list):
            return None
        reason, usage = word_at(body, "stop_reason") or None, object_at(body, "usage") or None
        return SaidMessage(objects_at(body, "content"), finish=reason, usage=usage)

    def joined(self, data: bytes, earlier: Sequence[Said], *, keeps_text: bool = True) -> bytes:
        body = json_or_none(data)
        said = SaidMessage(objects_at(body, "content"))
        if not (earlier or said.memory_calls):
            return data
        text = "".join(reply.text for reply in earlier) if keeps_text else ""
        before = [{"type": "text", "text": text}] if text.strip() else []
        content = [*before, *(block for block in said.blocks if not is_hidden(block))]
        if says_nothing(content):
            content.append({"type": "text", "text": NO_ANSWER})
        reason = stop_for_client(body.get("stop_reason"), has_calls=said.has_client_calls)
        return dump(with_usage({**body, "content": content, "stop_reason": reason}, earlier)).encode()


# -- markers of the prompt cache -----------------------------------------------------------------------------------

MAX_MARKERS = 4
_KEY = "cache_control"
_MARK = b'"cache_control"'


def _marked(elements: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for element in elements:
        if _MARK in element:
            yield from _markers(list_at(json_or_none(element), "content"))


def _markers(blocks: object) -> Iterator[Mapping[str, Any]]:
    """The markers of blocks, in order, including those inside results."""
    for block in blocks if isinstance(blocks, list) else ():
        if isinstance(block, Mapping):
            yield from _markers(block.get("content"))
            if isinstance(marker := block.get(_KEY), Mapping):
                yield marker


def _with_marker(element: bytes, marker: Mapping[str, Any]) -> bytes | None:
    message = json_or_none(element)
    if not isinstance(message, dict) or _MARK in element:
        return None
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) and content else content
    if not isinstance(blocks, list) or not blocks or not isinstance(blocks[-1], dict):
        return None
    message["content"] = [*blocks[:-1], {**blocks[-1], _KEY: marker}]
    return dump(message).encode("utf-8", "surrogatepass")


MESSAGES_ENDPOINT = MessagesEndpoint()
