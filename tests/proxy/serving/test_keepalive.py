"""What is sent to a client that waits for a stream, in which order, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message

from proxy.endpoints.chat.endpoint import CHAT_ENDPOINT
from proxy.serving.keepalive import KeepAlive
from tests.support.signals import BOUND

pytestmark = pytest.mark.anyio

BEAT = b": beat\n\n"
SOON, NEVER = 0.001, 3_600.0
EVENTS = [(b"content-type", b"text/event-stream")]
EVENT = b"data: 1\n\n"


def head(status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> Message:
    return {"type": "http.response.start", "status": status, "headers": EVENTS if headers is None else headers}


def body(part: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": part, "more_body": more}


class Client:
    """Receives messages, and can block their sender as a slow network does."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.flows = asyncio.Event()
        self.flows.set()
        self._changed = asyncio.Condition()
        self.taking = 0

    async def send(self, message: Message) -> None:
        self.taking += 1
        await self._tell()
        await self.flows.wait()
        self.got.append(message)
        await self._tell()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when something holds of this client."""
        async with asyncio.timeout(BOUND), self._changed:
            await self._changed.wait_for(holds)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def heads(self) -> list[Message]:
        return [each for each in self.got if each["type"] == "http.response.start"]

    def beats(self) -> int:
        return sum(each.get("body") == BEAT for each in self.got)

    @property
    def text(self) -> bytes:
        """The body without signs of life."""
        return b"".join(each.get("body", b"") for each in self.got).replace(BEAT, b"")


async def a_while() -> None:
    """Waits until another keep-alive has sent three beats, so that any beat due before has been sent."""
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    keep_alive.start(client.send)
    await client.until(lambda: client.beats() >= 3)
    await keep_alive.stop()


async def test_a_reply_in_time_passes_message_by_message() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, NEVER, lambda: BEAT)
    send, messages = keep_alive.start(client.send), [head(), body(EVENT), body(EVENT), body(b"", more=False)]
    for each in messages:
        await send(each)
    await keep_alive.close()
    assert client.got == messages
    assert not keep_alive.has_sent_head


async def test_a_head_and_beats_are_sent_until_the_first_byte_and_none_later() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    send = keep_alive.start(client.send)
    await client.until(lambda: client.beats() >= 2)
    keep_alive.decision_headers = lambda: [("X-Condenser-Session", "late")]
    await send(head(200, [*EVENTS, (b"x-request-id", b"1")]))
    told = client.beats()
    await client.until(lambda: client.beats() > told)
    await send(body(EVENT))
    length = len(client.got)
    await a_while()
    assert len(client.got) == length
    await send(body(EVENT, more=False))
    await keep_alive.close()
    assert [each["status"] for each in client.heads()] == [200]
    assert (b"x-condenser-action", b"pending") in client.got[0]["headers"]
    assert client.text == EVENT + EVENT
    assert not client.got[-1]["more_body"]


async def test_beats_are_sent_after_the_replys_own_head_if_that_allows_them() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    send = keep_alive.start(client.send)
    await send(head())
    await client.until(lambda: client.beats() >= 1)
    await send(body(EVENT, more=False))
    assert client.got[0] == head()
    assert not keep_alive.has_sent_head
    assert client.text == EVENT


@pytest.mark.parametrize(
    "begun",
    [
        head(500),
        head(200, [(b"content-type", b"application/json")]),
        head(200, [*EVENTS, (b"content-encoding", b"br")]),
    ],
    ids=["an error", "JSON", "packed"],
)
async def test_no_beats_are_sent_after_any_other_head(begun: Message) -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    send = keep_alive.start(client.send)
    await send(begun)
    await a_while()
    await send(body(b"{}", more=False))
    assert client.got == [begun, body(b"{}", more=False)]


async def test_whether_a_head_is_sent_is_decided_before_the_upstream_is_asked() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, 0.0, lambda: BEAT)
    send = keep_alive.start(client.send)
    for _ in range(2):
        await asyncio.sleep(0)  # the first sign of life is due, and its task has not begun
    began = keep_alive.has_sent_head
    keep_alive.waits_for_upstream = True
    await a_while()
    assert bool(client.heads()) is began
    keep_alive.waits_for_upstream = False
    await send(head())
    await send(body(EVENT, more=False))
    assert client.text == EVENT


async def test_a_stopped_keep_alive_sends_no_beats() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    send = keep_alive.start(client.send)
    await keep_alive.stop()
    await send(head())
    await a_while()
    await send(body(EVENT, more=False))
    assert client.got == [head(), body(EVENT, more=False)]


async def test_a_beat_that_is_held_up_is_sent_before_the_reply() -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    client.flows.clear()
    send = keep_alive.start(client.send)
    await client.until(lambda: client.taking == 1)
    sending = asyncio.ensure_future(send(head(500, [])))
    client.flows.set()
    async with asyncio.timeout(BOUND):
        await sending
        await send(body(b"", more=False))
    assert len(client.heads()) == 1
    assert client.heads() == client.got[:1]
    assert b'"upstream_error"' in client.text


@pytest.mark.parametrize("flowed", [b"", b"data: half"])
async def test_a_stream_that_was_not_ended_is_ended_with_an_error_event(flowed: bytes) -> None:
    client, keep_alive = Client(), KeepAlive(CHAT_ENDPOINT, SOON, lambda: BEAT)
    send = keep_alive.start(client.send)
    await client.until(lambda: client.beats() >= 1)
    await send(head())
    await send(body(flowed))
    await keep_alive.close()
    *_, last, rest = client.text.split(b"\n\n")
    assert rest == b""
    assert last.startswith(b'data: {"error":')
    assert not client.got[-1]["more_body"]
