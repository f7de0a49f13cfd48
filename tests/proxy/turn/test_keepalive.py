"""When a client of a stream gets signs of life, and that they part no event."""

import asyncio
from collections.abc import Callable

import pytest
from starlette.types import Message

from proxy.turn.relay import KeepAlive, allows_beats
from tests.support.signals import BOUND

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

    def beats(self) -> int:
        return sum(each.get("body") == BEAT for each in self.got)

    @property
    def text(self) -> bytes:
        """The body without signs of life."""
        return b"".join(each.get("body", b"") for each in self.got).replace(BEAT, b"")


async def a_while() -> None:
    """Waits until another keep-alive has sent three beats, so that any beat due before has been sent."""
    client = Client()
    keep_alive = KeepAlive(client.send, SOON, BEAT)
    await keep_alive.send(head())
    await client.until(lambda: client.beats() >= 3)
    await keep_alive.stop()


async def test_nothing_is_sent_before_the_head() -> None:
    client = Client()
    keep_alive = KeepAlive(client.send, SOON, BEAT)
    await a_while()
    assert client.got == []
    await keep_alive.send(head())
    await keep_alive.send(body(EVENT, more=False))
    assert client.got == [head(), body(EVENT, more=False)]


async def test_beats_fill_each_pause_between_events_until_the_last() -> None:
    client = Client()
    keep_alive = KeepAlive(client.send, SOON, BEAT)
    await keep_alive.send(head())
    for part in (EVENT, EVENT[:-1], b"\n"):  # an event may end in two messages
        told = client.beats()
        if part != b"\n":
            await client.until(lambda told=told: client.beats() > told)  # type: ignore[misc]
        await keep_alive.send(body(part))
    told = client.beats()
    await client.until(lambda: client.beats() > told)
    await keep_alive.send(body(EVENT, more=False))
    length = len(client.got)
    await a_while()
    assert len(client.got) == length
    assert client.got[0] == head()
    assert client.text == EVENT * 3


async def test_no_beat_parts_an_event() -> None:
    client = Client()
    keep_alive, halves = KeepAlive(client.send, SOON, BEAT), [body(EVENT[:3]), body(EVENT[3:], more=False)]
    await keep_alive.send(head())
    await keep_alive.send(halves[0])
    length = len(client.got)
    await a_while()
    assert len(client.got) == length
    await keep_alive.send(halves[1])
    assert client.text == EVENT


@pytest.mark.parametrize(
    "begun",
    [
        head(500),
        head(200, [(b"content-type", b"application/json")]),
        head(200, [*EVENTS, (b"content-encoding", b"br")]),
        head(200, [*EVENTS, (b"Content-Length", b"9")]),
    ],
    ids=["an error", "JSON", "packed", "of a known length"],
)
async def test_no_beats_are_sent_after_any_other_head(begun: Message) -> None:
    assert allows_beats(200, [*EVENTS, (b"content-encoding", b"identity")])
    client = Client()
    keep_alive = KeepAlive(client.send, SOON, BEAT)
    await keep_alive.send(begun)
    await a_while()
    await keep_alive.send(body(b"{}", more=False))
    assert client.got == [begun, body(b"{}", more=False)]


async def test_a_delayed_beat_is_sent_once_before_the_reply() -> None:
    client = Client()
    keep_alive = KeepAlive(client.send, SOON, BEAT)
    await keep_alive.send(head())
    client.flows.clear()
    await client.until(lambda: client.taking == 2)
    await a_while()
    assert client.taking == 2
    sending = asyncio.ensure_future(keep_alive.send(body(EVENT, more=False)))
    client.flows.set()
    async with asyncio.timeout(BOUND):
        await sending
    assert client.got == [head(), body(BEAT), body(EVENT, more=False)]


async def test_a_stopped_keep_alive_sends_no_beats() -> None:
    client = Client()
    keep_alive = KeepAlive(client.send, NEVER, BEAT)
    await keep_alive.send(head())
    await keep_alive.stop()
    await a_while()
    assert client.got == [head()]
