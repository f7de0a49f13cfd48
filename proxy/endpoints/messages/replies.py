"""Replies of the Messages API: how they are read, and what the client gets of those with hidden calls. Pure.

A model that searches answers in several replies; the client sees one message. Events pass as they come, byte for byte
if nothing in them must change. The blocks of hidden calls are removed, and if another reply follows, so is the end of
this one: its stop reason, its usage, its `message_stop`. The next reply continues without a `message_start`, and its
blocks are numbered after those that the client has; the last usage counts the output tokens of all replies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.endpoints.hidden_calls import NAME, NO_ANSWER, HiddenCall, HiddenRound, Said, Splicer, rewritten, with_usage
from proxy.endpoints.replies import Items, Json, StreamCapture, TextPlaces, named_event
from proxy.values import count_at, json_or_none, object_at, objects_at, word_at
from strategies.dialects.messages import THINKING

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
        """The block with an index, as it began; empty if there is none."""
        return self._blocks.get(index, {})

    def _whole(self, index: int, block: Json) -> Json:
        texts = {member: "".join(pieces) for member, pieces in self._pieces.get(index, {}).items()}
        if "input" not in texts:
            return {**block, **{member: f"{block.get(member) or ''}{text}" for member, text in texts.items()}}
        given = json_or_none(texts["input"])
        return {**block, "input": given if isinstance(given, dict) else {}}

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
    kept = [block for block in objects_at(document, "content") if block.get("type") != "text" or block.get("text")]
    return ({"role": "assistant", "content": kept},) if kept else ()


# -- hidden calls ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaidMessage(Said):
    """A message, given its blocks."""

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
    given = call.get("input")
    return {**call, "id": call.get("id") or name, "input": given if isinstance(given, dict) else {}}


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
