"""An upstream that answers at once, as a process of its own: `python -m bench.stub PORT [WRONG]`.

A request is answered in its protocol with the same bytes each time, whole or as about 36 chunks of one event each; only
the prompt tokens of its usage differ: a quarter of the request's bytes. The text would do for a summary. With WRONG,
one answer in that many is wrong, in each way of `FAULTS` in turn.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from typing import NamedTuple, cast

import httptools
import uvloop

from tests.support import messages_upstream, replies, responses_upstream
from tests.support.prefixes import event
from tests.support.replies import Json

REPLY = 2 * "The record: the user asked for a fix of the parser; the agent read it, changed it and ran the tests. "
"""The text of a reply that is not streamed."""
WORDS = 32
_LONG_WORDS = "seven words " * WORDS
"""As long as the pieces in which the other protocols stream a text."""
_PROMPT = 10_000_001
"""Stands where the prompt tokens are."""
BYTES_PER_TOKEN = 4
_TAIL = 400
"""Bytes at the end of a body in which `stream` stands: clients of this harness write it last."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"0\r\n\r\n"


def _refusal(status: str, *, code: str, message: str = "no", more: str = "") -> bytes:
    data = json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": code}}).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{more}content-length: {len(data)}\r\n\r\n"
    return head.encode() + data


FAULTS = (
    _refusal("500 Internal Server Error", code="oops"),
    _refusal("429 Too Many Requests", code="slow", more="retry-after: 1\r\n"),
    _refusal("400 Bad Request", code="context_length_exceeded", message="Your input exceeds the context window."),
    _refusal("400 Bad Request", code="odd"),
    _refusal("503 Service Unavailable", code="busy"),
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"id": 1,',
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\n<html",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{",
    _HEAD + b"9\r\ndata: {}\n\r\n",
    b"no HTTP at all",
    b"",
)
"""Wrong answers. After the last ones, which are not complete, the connection is closed."""
_INCOMPLETE = 4


class Answer(NamedTuple):
    """A reply: whole, and as the chunks of a stream."""

    plain: bytes
    chunks: tuple[bytes, ...]


def _answer(body: Json, events: Iterable[bytes]) -> Answer:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return Answer(head.encode() + data, tuple(b"%x\r\n%b\r\n" % (len(each), each) for each in events))


def _chat() -> Answer:
    choice = {"index": 0, "message": replies.assistant(REPLY), "finish_reason": "stop"}
    usage = replies.usage(_PROMPT, WORDS + 3)
    chunks = [*replies.text_chunks(" ".join(["word"] * WORDS)), replies.usage_chunk(_PROMPT, WORDS + 3)]
    body = {"id": replies.ID, "object": "chat.completion", "choices": [choice], "usage": usage}
    return _answer(body, [*map(replies.sse, chunks), replies.DONE])


def _messages() -> Answer:
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": replies.MODEL, "stop_reason": "end_turn",
        "usage": {"input_tokens": _PROMPT, "output_tokens": WORDS + 3},
    }  # fmt: skip
    plain, long = ({**body, "content": [messages_upstream.text(text)]} for text in (REPLY, _LONG_WORDS))
    return _answer(plain, messages_upstream.events(long))


def _responses() -> Answer:
    body = {
        "id": "resp_1", "object": "response", "model": replies.MODEL, "error": None, "status": "completed",
        "usage": {"input_tokens": _PROMPT, "output_tokens": WORDS + 3, "total_tokens": 99_999},
    }  # fmt: skip
    texts = (REPLY, _LONG_WORDS)
    plain, long = ({**body, "output": [{"id": "msg_1", **responses_upstream.message(text)}]} for text in texts)
    events = enumerate(responses_upstream.events(long))
    return _answer(plain, (event({**each, "sequence_number": number}) for number, each in events))


_CHAT = _chat()
ANSWERS = {b"/v1/messages": _messages(), b"/v1/responses": _responses()}


class _Connection(asyncio.Protocol):
    """One client; requests are answered in the order in which they come."""

    requests = 0
    wrong = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._tail, self._size = b"", 0

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._answer = ANSWERS.get(url, _CHAT)

    def on_body(self, body: bytes) -> None:
        self._tail = (self._tail + body)[-_TAIL:]
        self._size += len(body)

    def on_message_complete(self) -> None:
        is_stream = b'"stream":true' in self._tail.replace(b" ", b"")
        known, prompt = b"%d" % _PROMPT, b"%8d" % (self._size // BYTES_PER_TOKEN)
        self._tail, self._size = b"", 0
        _Connection.requests += 1
        if self.wrong and _Connection.requests % self.wrong == 0:
            which = _Connection.requests // self.wrong % len(FAULTS)
            self._transport.write(FAULTS[which])
            if which >= len(FAULTS) - _INCOMPLETE:
                self._transport.close()
            return
        if not is_stream:
            self._transport.write(self._answer.plain.replace(known, prompt))
            return
        self._transport.write(_HEAD)
        # One write each, back to back: a proxy that gathers them has its chance to.
        for chunk in self._answer.chunks:
            self._transport.write(chunk.replace(known, prompt))
        self._transport.write(_END)


async def main(port: int, wrong: int) -> None:
    """Answers on a port of this machine until it is ended."""
    _Connection.wrong = wrong
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
