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

from proxy.endpoints.hidden_calls import NO_ANSWER
from proxy.endpoints.messages.hidden_calls import (
    SaidMessage,
    is_empty_text,
    is_hidden,
    stop_for_client,
    usage_for_client,
)
from proxy.endpoints.messages.replies import ANSWER, Json, StreamedMessage, index_of, named_event
from proxy.http.sse import Events
from proxy.overflow.reading import is_error_body
from proxy.values import json_or_none
from strategies.core.messages import dump
from strategies.dialects.messages import THINKING


class MessagesSplicer:
    """Joins replies into one stream. `runs_calls` says whether the hidden calls of the first one are run."""

    def __init__(self, *, runs_calls: bool) -> None:
        self._runs_calls = runs_calls
        self._replaceable = False
        self._earlier: list[SaidMessage] = []
        self._sent_blocks = 0
        self._has_sent_start = False
        self._has_answer = False
        self._reset()

    def _reset(self) -> None:
        self._events = Events()
        self._message = StreamedMessage()
        self._numbers: dict[int, int | None] = {}
        self._has_sent = False
        self.is_over = False
        self.failed_event = b""

    def begin(self, *, runs_calls: bool, replaceable: bool = True) -> None:
        """Goes on with another reply; `replaceable` says whether one more may take its place if it fails."""
        self._earlier.append(self.said)
        self._runs_calls, self._replaceable = runs_calls, replaceable
        self._reset()

    @property
    def said(self) -> SaidMessage:
        """What the model said in the reply, as far as it has come."""
        return SaidMessage(self._message.blocks, self._message.stop_reason, self._message.usage or None)

    @property
    def has_sent_text(self) -> bool:
        """Whether the client has got text of the answer."""
        return any(each.text for each in (*self._earlier, self.said))

    @property
    def is_replaceable(self) -> bool:
        """Whether another reply may take the place of this one: the client has nothing of it."""
        return self._replaceable and not self._has_sent

    @property
    def is_unanswered(self) -> bool:
        """Whether this reply could be replaced, and the client has no text of the ones before it either."""
        return self.is_replaceable and not self.has_sent_text

    @property
    def has_searches(self) -> bool:
        """Whether hidden calls are complete and are to be run."""
        message = self._message
        ended = message.is_over or message.stop_reason is not None
        return ended and self._runs_calls and not message.is_broken and self.said.calls_memory

    @property
    def is_continued(self) -> bool:
        """Whether the upstream is to be asked again: the model called only the memory tool."""
        return self.has_searches and not self.said.has_client_calls

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that go to the client when a chunk of a reply comes."""
        return b"".join([self._pass_event(lines) for lines in self._events.feed(chunk)])

    def rest(self) -> bytes:
        """The bytes for the client when a reply has ended: the rest of its last event, unchanged."""
        rest = self._events.rest()
        return b"" if self.is_continued else rest

    def _pass_event(self, lines: list[bytes]) -> bytes:
        if self.is_replaceable and is_error_body(event := b"".join(lines), answer=ANSWER):
            self.failed_event = event
        if self.failed_event:
            return b""
        data = b"\n".join(line[5:].strip(b"\r\n").removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        body = json_or_none(data) if data else None
        if not isinstance(body, dict):
            return b"".join(lines)
        self._message.add(body)
        self.is_over = self._message.is_over
        passed = self._passed(body)
        if passed is None:
            return b""
        added = self._answer_before(body)
        return added + (b"".join(lines) if passed == body else _rewritten(lines, passed))

    def _passed(self, body: Json) -> Json | None:
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


def _rewritten(lines: list[bytes], body: Mapping[str, Any]) -> bytes:
    """An event with `body` as its data, its other lines as they came."""
    at = next(i for i, line in enumerate(lines) if line.startswith(b"data:"))
    end = lines[at][len(lines[at].rstrip(b"\r\n")) :]
    others = [line for line in lines[at + 1 :] if not line.startswith(b"data:")]
    return b"".join([*lines[:at], b"data: " + dump(body).encode() + end, *others])
