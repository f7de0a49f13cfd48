"""An upstream that answers at once, as a process of its own: `python -m bench.stub PORT`.

A request is answered in its protocol with the same bytes each time, whole or as about 36 chunks of one event each; only
the prompt tokens of its usage differ: a quarter of the request's bytes. The text would do for a summary.
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
        if not is_stream:
            self._transport.write(self._answer.plain.replace(known, prompt))
            return
        self._transport.write(_HEAD)
        # One write each, back to back: a proxy that gathers them has its chance to.
        for chunk in self._answer.chunks:
            self._transport.write(chunk.replace(known, prompt))
        self._transport.write(_END)


async def main(port: int) -> None:
    """Answers on a port of this machine until it is ended."""
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
