"""Joins several streams of the Messages API into one stream for the client: bytes in, bytes out. Pure.

A model that searches answers in several replies; the client sees one message. Events pass as they come, byte for byte
where nothing in them must change. The blocks of hidden calls are taken out, and so is the end of a reply that another
one follows: its reason to stop, its usage, its `message_stop`. The next reply goes on without a `message_start`, its
blocks numbered after those that the client has; the last usage counts the output tokens of all of them.

How the driver uses a splicer is told in `proxy.endpoints.hidden_calls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.endpoints.hidden_calls import NO_ANSWER, Splicer, rewritten
from proxy.endpoints.messages.hidden_calls import (
    SaidMessage,
    is_empty_text,
    is_hidden,
    stop_for_client,
    usage_for_client,
)
from proxy.endpoints.messages.replies import ANSWER, Json, StreamedMessage, index_of, named_event
from proxy.values import json_or_none
from strategies.dialects.messages import THINKING


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
        """What the model said in the reply, as far as it has come."""
        return SaidMessage(self._message.blocks, self._message.stop_reason, self._message.usage or None)

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        message = self._message
        ended = message.is_over or message.stop_reason is not None
        return ended and self._runs_calls and not message.is_broken and self.said.calls_memory

    def _passed(self, lines: list[bytes], data: bytes) -> bytes:
        body = json_or_none(data) if data else None
        if not isinstance(body, dict):
            return b"".join(lines)
        self._message.add(body)
        self.is_over = self._message.is_over
        passed = self._passed_body(body)
        if passed is None:
            return b""
        added = self._answer_before(body)
        return added + (b"".join(lines) if passed == body else rewritten(lines, passed))

    def _passed_body(self, body: Json) -> Json | None:
        """An event as the client gets it; None if it gets nothing of it."""
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
        index = index_of(body)
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
        """The event that ends a reply, with the reason to stop and the usage that the client gets."""
        self._has_sent = True
        delta, usage = body.get("delta"), body.get("usage")
        if isinstance(delta, Mapping) and self.said.memory_calls:
            reason = stop_for_client(delta.get("stop_reason"), has_calls=self.said.has_client_calls)
            body = {**body, "delta": {**delta, "stop_reason": reason}}
        earlier = [each.usage for each in self._earlier if each.usage]
        if isinstance(usage, Mapping) and earlier:
            body = {**body, "usage": usage_for_client(usage, earlier)}
        return body

    def _answer_before(self, body: Mapping[str, Any]) -> bytes:
        """A text block that goes before the end of a message which has nothing but hidden calls and thinking."""
        is_end = body.get("type") == "message_delta" and not self._has_answer
        if not is_end or not (self._earlier or self.said.memory_calls):
            return b""
        self._has_answer = True
        blocks = [block for each in (*self._earlier, self.said) for block in each.blocks if not is_hidden(block)]
        if not all(is_empty_text(block) or block.get("type") in THINKING for block in blocks):
            return b""
        number, self._sent_blocks = self._sent_blocks, self._sent_blocks + 1
        start = {"type": "content_block_start", "index": number, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": number, "delta": {"type": "text_delta", "text": NO_ANSWER}}
        return b"".join(map(named_event, (start, delta, {"type": "content_block_stop", "index": number})))
