"""An upstream that answers at once, as a process of its own: `python -m bench.stub PORT [EVERY]`.

A request is answered in its protocol with the same bytes each time, whole or as about 36 chunks of one event each, but
for the prompt tokens of its usage: a quarter of the request's bytes. A chat's usage has an event of its own.
The text would do for a summary. With EVERY, each request of that number is answered with the next one of `FAULTS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from itertools import count, cycle
from typing import Any, NamedTuple, cast

import httptools
import uvloop

EVENTS = 35
REPLY = 2 * "The record: the user asked for a fix of the parser; the agent read it, changed it and ran the tests. "
"""The text of a reply that is not streamed."""
_USAGE = {"prompt_tokens": "PROMPT", "completion_tokens": 35, "total_tokens": 99_999}
_PROMPT = b'"PROMPT"'
BYTES_PER_TOKEN = 4
_TAIL = 400
"""Bytes at the end of a body in which `stream` stands: clients of this harness write it last."""


WORDS = EVENTS - 3

Json = dict[str, Any]


class Answer(NamedTuple):
    """A reply: whole, and as the chunks of a stream."""

    plain: bytes
    chunks: tuple[bytes, ...]


def _answer(body: object, events: Iterable[bytes]) -> Answer:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return Answer(head.encode() + data, tuple(map(_chunk, events)))


def _chat() -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": REPLY}, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": _USAGE}
    deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}, *[{"content": " word"}] * WORDS]
    choices: list[dict[str, object]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    events = [{**common, "choices": [choice]} for choice in choices] + [{**common, "choices": [], "usage": _USAGE}]
    return _answer(body, [*(b"data: %b\n\n" % json.dumps(event).encode() for event in events), b"data: [DONE]\n\n"])


def _messages() -> Answer:
    usage = {"input_tokens": "PROMPT", "output_tokens": 35}
    body: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "gpt-4o", "stop_reason": "end_turn"}
    begun: Json = {**body, "content": [], "stop_reason": None, "usage": usage}
    word = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " word"}}
    events: list[Json] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[word] * WORDS,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 35}},
        {"type": "message_stop"},
    ]
    return _answer({**body, "content": [{"type": "text", "text": REPLY}], "usage": usage}, map(_named, events))


def _responses() -> Answer:
    usage = {"input_tokens": "PROMPT", "output_tokens": 35, "total_tokens": 99_999}
    body: Json = {"id": "resp_1", "object": "response", "model": "gpt-4o", "error": None}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    whole = {**item, "content": [{"type": "output_text", "text": REPLY, "annotations": []}]}
    done = {**body, "status": "completed", "output": [whole], "usage": usage}
    begun: Json = {**body, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *[{"type": "response.output_text.delta", **place, "delta": " word"}] * WORDS,
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": done},
    ]
    return _answer(done, (_named({**event, "sequence_number": number}) for number, event in enumerate(events)))


def _named(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWERS = {b"/v1/chat/completions": _chat(), b"/v1/messages": _messages(), b"/v1/responses": _responses()}
_PLAIN, _EVENTS = ANSWERS[b"/v1/chat/completions"]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _refused(status: str, error: dict[str, str], *headers: str) -> bytes:
    body = json.dumps({"error": error}).encode()
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


FAULTS = {
    "closed at once": b"",
    "no HTTP": b"\x00\xff garbage\r\n\r\n",
    "server error": _refused("500 Internal Server Error", {"message": "it broke", "type": "server_error"}),
    "busy": _refused("503 Service Unavailable", {"message": "overloaded"}, "retry-after: 1"),
    "rate limit": _refused("429 Too Many Requests", {"message": "slow down", "code": "rate_limit_exceeded"}),
    "too long": _refused("400 Bad Request", {"message": "the prompt is too long", "code": "context_length_exceeded"}),
    "HTML": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>",
    "cut body": _PLAIN[:-40],
    "cut stream": _HEAD + b"".join(_EVENTS[:12]),
    "half an event": _HEAD + b"".join(_EVENTS[:5]) + _chunk(b'data: {"choices": [') + _END,
    "no JSON": b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"choices',
}
"""Answers that are wrong; the connection is closed after each."""


class _Connection(asyncio.Protocol):
    """One client; requests are answered in the order in which they come."""

    every = 0
    _numbers = count(1)
    _faults = cycle(FAULTS.values())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._tail, self._size = b"", 0

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._answer = ANSWERS.get(url) or Answer(_PLAIN, _EVENTS)

    def on_body(self, body: bytes) -> None:
        self._tail = (self._tail + body)[-_TAIL:]
        self._size += len(body)

    def on_message_complete(self) -> None:
        is_stream = b'"stream":true' in self._tail.replace(b" ", b"")
        prompt = b"%8d" % (self._size // BYTES_PER_TOKEN)
        self._tail, self._size = b"", 0
        if self.every and next(self._numbers) % self.every == 0:
            self._transport.write(next(self._faults))
            self._transport.close()
            return
        if not is_stream:
            self._transport.write(self._answer.plain.replace(_PROMPT, prompt))
            return
        self._transport.write(_HEAD)
        # One write each, back to back: a proxy that gathers them has its chance to.
        for chunk in self._answer.chunks:
            self._transport.write(chunk.replace(_PROMPT, prompt))
        self._transport.write(_END)


async def main(port: int) -> None:
    """Answers on a port of this machine until it is ended."""
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    _Connection.every = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    uvloop.run(main(int(sys.argv[1])))
