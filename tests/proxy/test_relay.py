"""What of a reply leaves when: the end of it waits for what is stored, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from starlette.types import Message

from proxy.headers import Headers
from proxy.relay import Incoming, Relay
from tests.support.signals import BOUND

pytestmark = pytest.mark.anyio

DONE = b"data: [DONE]\n\n"
STREAM: Headers = [(b"content-type", b"text/event-stream")]


class Reply:
    """A reply whose chunks are all there."""

    status = 200

    def __init__(self, headers: Headers, *chunks: bytes) -> None:
        self.headers = headers
        self._chunks = chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def close(self) -> None:
        pass


class Store:
    """Says when it is asked, and holds the relay until it may go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.stored = asyncio.Event()

    async def settle(self, _message: Mapping[str, Any] | None) -> None:
        self.asked.set()
        await self.stored.wait()


async def stays() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def sent_before_and_after_storing(reply: Reply) -> tuple[list[bytes], list[bytes]]:
    """The parts of the body that left before the store had answered, and those that left then."""
    store, parts = Store(), list[bytes]()

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    relay = Relay(Incoming(stays), reply, [], store.settle)
    running = asyncio.ensure_future(relay({"type": "http"}, stays, send))
    async with asyncio.timeout(BOUND):
        await store.asked.wait()
        before = parts[1:]
        store.stored.set()
        await running
    return before, parts[1 + len(before) :]


@pytest.mark.parametrize(
    ("reply", "before", "after"),
    [
        (Reply(STREAM, b"data: 1\n\n", DONE), [b"data: 1\n\n"], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\ndata: 2\n\n" + DONE), [b"data: 1\n\ndata: 2\n\n"], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\n"), [b"data: 1\n\n"], [b""]),
        (Reply([(b"content-length", b"4")], b"{", b'"":'), [b"{"], [b'"":']),
        (Reply([(b"content-length", b"0")]), [], [b""]),
        (Reply([], b"{}"), [b"{}"], [b""]),
    ],
    ids=["stream", "stream in one chunk", "stream without its end", "length", "nothing", "no length"],
)
async def test_only_the_end_of_a_reply_waits_for_what_is_stored(
    reply: Reply, before: list[bytes], after: list[bytes]
) -> None:
    assert await sent_before_and_after_storing(reply) == (before, after)


async def test_a_client_that_leaves_before_it_has_taken_the_end_takes_nothing_from_what_is_stored() -> None:
    store, blocked = Store(), asyncio.Event()
    told = iter([{"type": "http.request"}])

    async def receive() -> Message:
        if request := next(told, None):
            return request
        await blocked.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message.get("body"):
            blocked.set()
            await asyncio.Event().wait()

    incoming = Incoming(receive)
    assert [part async for part in incoming.body()] == []
    relay = Relay(incoming, Reply(STREAM, b"data: 1\n\n" + DONE), [], store.settle)
    async with asyncio.timeout(BOUND):
        await relay({"type": "http"}, receive, send)
    assert store.asked.is_set()
    store.stored.set()


class Unreadable:
    """A reader of replies with a defect."""

    def feed(self, chunk: bytes) -> None:
        raise ZeroDivisionError

    def message(self) -> dict[str, Any] | None:
        raise AssertionError("it was dropped")


async def failing(_message: Mapping[str, Any] | None) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("capture", [None, Unreadable()])
async def test_a_defect_of_ours_costs_the_client_nothing_of_its_reply(
    capture: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parts = list[bytes]()

    async def send(message: Message) -> None:
        parts.append(message.get("body", b""))

    relay = Relay(Incoming(stays), Reply(STREAM, b"data: 1\n\n", DONE), [], failing, capture)
    async with asyncio.timeout(BOUND):
        await relay({"type": "http"}, stays, send)
    assert b"".join(parts) == b"data: 1\n\n" + DONE
    assert "ZeroDivisionError" in caplog.text
