"""How much of a reply is held back for inspection, and that it is relayed as it came."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence

import pytest

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.protocols.chat import CHAT_ENDPOINT
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.messages import MESSAGES_ENDPOINT
from proxy.protocols.opening import MAX_HELD, open_reply
from proxy.protocols.responses import RESPONSES_ENDPOINT
from proxy.servers.refusals import NO_REFUSAL, Refusal
from proxy.servers.upstream import UpstreamReply

REFUSES = json.dumps({"error": {"message": "This model's maximum context length is 4096 tokens."}}).encode()
EVENTS: Headers = [(b"content-type", b"text/event-stream")]
JSON: Headers = [(b"content-type", b"application/json")]


class Scripted:
    """A reply made of parts: bytes to yield, an exception to raise, or an event to wait for."""

    def __init__(self, parts: Sequence[bytes | Exception | asyncio.Event], status: int = 200, headers: Headers = JSON):
        self.status = status
        self.headers = headers
        self.closed = False
        self.given = 0
        self._parts = parts

    async def chunks(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
                continue
            self.given += 1
            yield part

    async def close(self) -> None:
        self.closed = True


async def all_of(reply: UpstreamReply) -> bytes:
    return b"".join([chunk async for chunk in reply.chunks()])


async def inspected(reply: Scripted) -> tuple[bytes, Refusal]:
    answer, refusal = await open_reply(CHAT_ENDPOINT, reply, holds=False)
    return await all_of(answer), refusal


async def test_only_an_error_under_a_good_status_is_read_whole() -> None:
    _, refusal = await inspected(Scripted([REFUSES[:30], REFUSES[30:]]))
    assert refusal.sizes
    reply = Scripted([b'{"id":"1","choices":[{"message":{"content":"an ', b'\\"error\\""}}]}'])
    answer, refusal = await open_reply(CHAT_ENDPOINT, reply, holds=False)
    assert (refusal, reply.given) == (NO_REFUSAL, 1)
    assert b"an " in await all_of(answer)


@pytest.mark.parametrize("size", [1, 5, 1_000])
async def test_a_stream_is_held_until_its_first_event(size: int) -> None:
    stream = b": wait\r\n\r\nevent: error\r\ndata: " + REFUSES + b"\r\n\r\n"
    body, refusal = await inspected(
        Scripted([stream[at : at + size] for at in range(0, len(stream), size)], 200, EVENTS)
    )
    assert body == stream
    assert refusal.sizes


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"it died"}}', b'{"detail":"it died"}', b'{"base_resp":{"status_code":1013}}']
)
async def test_an_error_under_a_good_status_is_told_from_a_reply(body: bytes) -> None:
    assert (await open_reply(CHAT_ENDPOINT, Scripted([body]), holds=False)).refusal.status == 200
    said = b'{"choices":[{"message":{"content":"no \\"error\\""}}]}'
    assert (await open_reply(CHAT_ENDPOINT, Scripted([said]), holds=False)).refusal is NO_REFUSAL


GREETING = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


@pytest.mark.parametrize("size", [1, 7, 1_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
async def test_a_refusal_after_greetings_is_recognised(end: bytes, size: int) -> None:
    greetings = b": wait\n\nevent: hello\n" + GREETING + b": still here\n\n" + GREETING
    stream = (greetings + b"data: " + REFUSES + b"\n\n").replace(b"\n", end)
    reply = Scripted([stream[at : at + size] for at in range(0, len(stream), size)], 200, EVENTS)
    answer, refusal = await open_reply(CHAT_ENDPOINT, reply, holds=True)
    assert await all_of(answer) == stream
    assert refusal.sizes
    assert refusal.sizes[0].limit == 4_096


async def test_a_greeting_passes_at_once_unless_it_is_held() -> None:
    gate = asyncio.Event()
    answer, refusal = await open_reply(CHAT_ENDPOINT, Scripted([GREETING, gate, TEXT], 200, EVENTS), holds=False)
    assert refusal is NO_REFUSAL
    chunks = aiter(answer.chunks())
    assert await anext(chunks) == GREETING
    gate.set()
    assert [chunk async for chunk in chunks] == [TEXT]


async def test_an_endless_error_is_held_up_to_a_bound() -> None:
    reply = Scripted([b"x" * 65_536] * 40, 400)
    answer, refusal = await open_reply(CHAT_ENDPOINT, reply, holds=False)
    assert refusal.sizes == ()
    assert reply.given * 65_536 <= MAX_HELD + 65_536
    assert len(await all_of(answer)) == 40 * 65_536


async def test_an_upstream_that_breaks_off_breaks_off_for_the_client_too() -> None:
    answer, refusal = await open_reply(
        CHAT_ENDPOINT, Scripted([REFUSES[:10], UpstreamUnavailable("gone")], 400), holds=False
    )
    assert refusal.sizes == ()
    chunks = aiter(answer.chunks())
    assert await anext(chunks) == REFUSES[:10]
    with pytest.raises(UpstreamUnavailable):
        await anext(chunks)


async def test_an_encoded_error_is_recognised_and_an_unknown_encoding_passed_on() -> None:
    packed = gzip.compress(REFUSES)
    body, refusal = await inspected(Scripted([packed], 400, [*JSON, (b"content-encoding", b"gzip")]))
    assert (body, bool(refusal.sizes)) == (packed, True)
    assert (await inspected(Scripted([packed], 400, [*JSON, (b"content-encoding", b"compress")]))) == (
        packed,
        NO_REFUSAL,
    )


async def test_a_cancelled_inspection_closes_the_reply() -> None:
    reply = Scripted([asyncio.Event()], 400)
    looking = asyncio.create_task(open_reply(CHAT_ENDPOINT, reply, holds=False))
    await asyncio.sleep(0)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert reply.closed


async def test_a_held_greeting_waits_however_long_the_next_event_takes() -> None:
    gate = asyncio.Event()
    error = b"data: " + REFUSES + b"\n\n"
    reply = Scripted([GREETING, gate, b": working\n\n", error], 200, EVENTS)
    opening = asyncio.create_task(open_reply(CHAT_ENDPOINT, reply, holds=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (reply.given, opening.done()) == (1, False)
    gate.set()
    answer, refusal = await opening
    assert refusal.sizes
    assert await all_of(answer) == GREETING + b": working\n\n" + error


async def test_a_greeting_that_is_held_briefly_passes_before_a_late_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.protocols.opening.MAX_SECONDS", 0.0)
    gate = asyncio.Event()
    reply = Scripted([GREETING, gate, TEXT], 200, EVENTS)
    answer, refusal = await open_reply(CHAT_ENDPOINT, reply, holds=True, briefly=True)
    assert refusal.sizes == ()
    gate.set()
    assert await all_of(answer) == GREETING + TEXT


RAN_OUT = "model_context_window_exceeded"
_PART = {"type": "text", "text": ""}
_BLOCKS = [
    *({"type": "message_start"}, {"type": "content_block_start", "content_block": _PART}),
    *({"type": "content_block_stop"}, {"type": "message_delta", "delta": {"stop_reason": RAN_OUT}}),
]
_CREATED = {"type": "response.created"}
_INCOMPLETE = {"object": "response", "status": "incomplete", "incomplete_details": {"reason": RAN_OUT}, "output": []}


def as_events(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


@pytest.mark.parametrize(
    ("endpoint", "body", "headers"),
    [
        (CHAT_ENDPOINT, {"choices": [{"message": {"content": ""}, "finish_reason": RAN_OUT}]}, JSON),
        (CHAT_ENDPOINT, [{"choices": [{"delta": {}, "finish_reason": RAN_OUT}]}], EVENTS),
        (MESSAGES_ENDPOINT, {"type": "message", "content": [_PART], "stop_reason": RAN_OUT}, JSON),
        (MESSAGES_ENDPOINT, _BLOCKS, EVENTS),
        (RESPONSES_ENDPOINT, _INCOMPLETE, JSON),
        (RESPONSES_ENDPOINT, [_CREATED, {"type": "response.incomplete", "response": _INCOMPLETE}], EVENTS),
    ],
)
async def test_an_empty_reply_at_the_window_is_a_refusal(endpoint: Endpoint, body: object, headers: Headers) -> None:
    data = as_events(*body) if isinstance(body, list) else json.dumps(body).encode()
    answer, refusal = await open_reply(endpoint, Scripted([data[:40], data[40:]], 200, headers), holds=True)
    assert refusal.sizes
    assert await all_of(answer) == data


async def test_a_reply_with_text_or_calls_that_ran_out_is_none() -> None:
    for message in ({"content": "x"}, {"content": None, "tool_calls": [{"id": "1"}]}):
        body = {"choices": [{"message": message, "finish_reason": RAN_OUT}]}
        assert (await inspected(Scripted([json.dumps(body).encode()])))[1] is NO_REFUSAL
