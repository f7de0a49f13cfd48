"""When the parts of a reply are sent: its end waits until the session is stored, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.protocols.chat import CHAT_ENDPOINT, ChatEndpoint
from proxy.protocols.watching import UsageRemover, WatchedReply
from proxy.turn.reading import ClientStream
from proxy.turn.relay import Relay
from tests.support.giants import SIZE, giant
from tests.support.signals import BOUND

DONE = b"data: [DONE]\n\n"
SPOKEN = b'data: {"content":"\\ndata: [DONE]"}\n\n'
STREAM: Headers = [(b"content-type", b"text/event-stream")]


class Reply:
    """A reply whose chunks have all been received."""

    status = 200

    def __init__(self, headers: Headers, *chunks: bytes) -> None:
        self.headers = headers
        self._chunks = chunks

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def close(self) -> None:
        pass


class Broken(Reply):
    """A reply that breaks off after its chunks."""

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in super().chunks():
            yield chunk
        raise UpstreamUnavailable("The upstream broke off.")


class Received:
    """A client that takes all that it is sent."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        self.parts.append(message.get("body", b""))

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)


class Store:
    """Sets an event when it is called, and blocks the relay until it may go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.stored = asyncio.Event()

    async def settle(self) -> None:
        self.asked.set()
        await self.stored.wait()


async def stays() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def sent_before_and_after_storing(reply: Reply) -> tuple[list[bytes], list[bytes]]:
    """The parts of the body that were sent before the store had answered, and those sent afterwards."""
    store, client = Store(), Received()
    relay = Relay(CHAT_ENDPOINT, ClientStream(stays), reply, [], settle=store.settle)
    running = asyncio.ensure_future(relay({"type": "http"}, stays, client.send))
    async with asyncio.timeout(BOUND):
        await store.asked.wait()
        before = client.parts[1:]
        store.stored.set()
        await running
    return before, client.parts[1 + len(before) :]


@pytest.mark.parametrize(
    ("reply", "before", "after"),
    [
        (Reply(STREAM, b"data: 1\n\n", DONE), [b"data: 1\n\n"], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\ndata: 2\n\n" + DONE), [b"data: 1\n\ndata: 2\n\n"], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\n"), [b"data: 1\n\n"], [b""]),
        (Reply([(b"content-length", b"4")], b"{", b'"":'), [b"{"], [b'"":']),
        (Reply([(b"content-length", b"0")]), [], [b""]),
        (Reply([], b"{}"), [b"{}"], [b""]),
        (Reply(STREAM, SPOKEN, DONE), [SPOKEN], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\ndata: [DO", b"NE]\n\n"), [b"data: 1\n\ndata: [DO", b"NE]\n\n"], [b""]),
        (Reply(STREAM, b"data: 1\r\n\r\n", b"data: [DONE]"), [b"data: 1\r\n\r\n"], [b"data: [DONE]", b""]),
        (Reply(STREAM, b'data: "', DONE, DONE), [b'data: "', DONE], [DONE, b""]),
        (Reply(STREAM, b"data: 1\n\n" + DONE + b": bye\n\n"), [b"data: 1\n\n"], [DONE + b": bye\n\n", b""]),
        (Reply(STREAM, b"data: [DONE]: 1\n", b"\n"), [b"data: [DONE]: 1\n", b"\n"], [b""]),
        (Reply([], b'{"x": "data: [DONE]', b'"}'), [b'{"x": "data: [DONE]', b'"}'], [b""]),
    ],
    ids=[
        *("stream", "stream in one chunk", "stream without its end", "length", "nothing", "no length"),
        *("an end that is spoken of", "an end in two chunks", "an end without its line's", "within a line"),
        *("a comment behind the end", "an event that begins with the end", "in JSON"),
    ],
)
async def test_only_the_end_of_a_reply_waits_for_the_store(
    reply: Reply, before: list[bytes], after: list[bytes]
) -> None:
    assert await sent_before_and_after_storing(reply) == (before, after)


LAST = b'event: over\ndata: {"usage": 1}\n\n'


class SpeaksLast(ChatEndpoint):
    last_event_has_data = True

    def last_event_at(self, chunk: bytes, sent: bytes) -> int:
        return chunk.find(b"event: over")


@pytest.mark.parametrize("cut", [1, 11, 12, 20, len(LAST) - 1, len(LAST)])
async def test_an_ending_event_with_text_is_read_whole_first(cut: int) -> None:
    store, client, heard = Store(), Received(), list[bytes]()

    class Hearing(WatchedReply):
        def feed(self, chunk: bytes) -> None:
            heard.append(chunk)

    async def settle() -> None:
        assert b"".join(heard) == b"data: 1\n\n" + LAST
        await store.settle()

    first = b"data: 1\n\n" + (LAST[:cut] if cut > 10 else b"")
    reply = Reply(STREAM, first, LAST[cut:] if cut > 10 else LAST)
    relay = Relay(SpeaksLast(), ClientStream(stays), reply, [], settle=settle, watched=Hearing(CHAT_ENDPOINT, STREAM))
    running = asyncio.ensure_future(relay({"type": "http"}, stays, client.send))
    async with asyncio.timeout(BOUND):
        await store.asked.wait()
        assert client.body == b"data: 1\n\n"
        store.stored.set()
        await running
    assert client.body == b"data: 1\n\n" + LAST


async def test_a_long_last_event_is_sent_in_pieces() -> None:
    store, client, chunks = Store(), Received(), list(giant(b"event: over\ndata: "))
    relay = Relay(SpeaksLast(), ClientStream(stays), Reply(STREAM, *chunks), [], settle=store.settle)
    running = asyncio.ensure_future(relay({"type": "http"}, stays, client.send))
    async with asyncio.timeout(BOUND):
        await store.asked.wait()
        assert SIZE - 2_000_000 < len(client.body) < sum(map(len, chunks))
        assert max(map(len, client.parts)) < 2_000_000
        store.stored.set()
        await running
    assert client.body == b"".join(chunks)


class Leaving(Received):
    """A client that disconnects on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = asyncio.Event()
        self._told = iter([{"type": "http.request"}])

    async def receive(self) -> Message:
        if request := next(self._told, None):
            return request
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def client(self) -> ClientStream:
        client = ClientStream(self.receive)
        assert [part async for part in client.body()] == []
        return client


@pytest.mark.parametrize(
    "reply",
    [Reply(STREAM, b"data: 1\n\n" + DONE), Reply(STREAM, DONE), Reply([(b"content-length", b"2")], b"{}")],
    ids=["stream in one chunk", "stream", "length"],
)
async def test_a_reply_whose_client_leaves_is_followed_up_after_it_is_stored(reply: Reply) -> None:
    store, client, followed = Store(), Leaving(), asyncio.Event()
    relay = Relay(CHAT_ENDPOINT, await client.client(), reply, [], settle=store.settle, follow=followed.set)
    async with asyncio.timeout(BOUND):
        running = asyncio.ensure_future(relay({"type": "http"}, client.receive, client.send))
        await store.asked.wait()
        client.leaves.set()
        await running
        assert not followed.is_set()
        store.stored.set()
        await followed.wait()


async def test_a_reply_that_cannot_be_sent_is_stored_and_followed_up_too() -> None:
    store, followed = Store(), asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body"):
            raise ConnectionError

    reply = Reply(STREAM, b"data: 1\n\n" + DONE)
    relay = Relay(CHAT_ENDPOINT, ClientStream(stays), reply, [], settle=store.settle, follow=followed.set)
    async with asyncio.timeout(BOUND):
        with pytest.raises(ConnectionError):
            await relay({"type": "http"}, stays, send)
        store.stored.set()
        await followed.wait()


async def test_a_reply_that_breaks_off_is_not_followed_up() -> None:
    followed, reply = asyncio.Event(), Broken(STREAM, b"data: 1\n\n")
    relay = Relay(CHAT_ENDPOINT, ClientStream(stays), reply, [], settle=Store().settle, follow=followed.set)
    async with asyncio.timeout(BOUND):
        await relay({"type": "http"}, stays, Received().send)
    assert not followed.is_set()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7}}\n'


@pytest.mark.parametrize(
    ("held", "between"), [(USAGE, b"\n\n"), (USAGE[:20], b"\n\n"), (b"", b"")], ids=["line", "part of a line", "none"]
)
async def test_a_held_part_of_an_event_is_sent_before_the_error(held: bytes, between: bytes) -> None:
    client, editor = Received(), UsageRemover(CHAT_ENDPOINT)
    relay = Relay(CHAT_ENDPOINT, ClientStream(stays), Broken(STREAM, b"data: 1\n\n" + held), [], editor=editor)
    async with asyncio.timeout(BOUND):
        await relay({"type": "http"}, stays, client.send)
    before, error, after = client.body.partition(b'data: {"error"')
    assert before == b"data: 1\n\n" + held + between
    assert error
    assert after.endswith(b"\n\n")


class Unreadable:
    """A capture with a defect."""

    def feed(self, chunk: bytes) -> None:
        raise ZeroDivisionError


async def failing() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("capture", [None, Unreadable()])
async def test_defects_do_not_stop_the_reply(capture: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, reply = Received(), Reply(STREAM, b"data: 1\n\n", DONE)
    relay = Relay(CHAT_ENDPOINT, ClientStream(stays), reply, [], settle=failing, watched=capture)
    async with asyncio.timeout(BOUND):
        await relay({"type": "http"}, stays, client.send)
    assert client.body == b"data: 1\n\n" + DONE
    assert "ZeroDivisionError" in caplog.text
