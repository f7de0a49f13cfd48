"""Work that ends when the client leaves, and only then: in the task of the request, which lives on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from starlette.types import Message

from proxy.turn.reading import ClientGone, ClientStream

T = TypeVar("T")


class Client:
    """Sends a body, and leaves when it is told to."""

    def __init__(self) -> None:
        self.watched, self.leaves = asyncio.Event(), asyncio.Event()
        self._has_sent = False

    async def receive(self) -> Message:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": b"{}", "more_body": False}
        self.watched.set()
        await self.leaves.wait()
        return {"type": "http.disconnect"}


async def unless_gone(stream: ClientStream, work: Awaitable[T]) -> T:
    with stream.unless_gone():
        return await work


async def read(client: Client) -> ClientStream:
    stream = ClientStream(client.receive)
    assert [part async for part in stream.body()] == [b"{}"]
    return stream


async def test_what_work_raises_is_raised() -> None:
    async def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await unless_gone(await read(Client()), work())


async def test_work_is_cancelled_when_the_client_leaves_and_its_task_lives_on() -> None:
    client, ended = Client(), asyncio.Event()

    async def work() -> None:
        client.leaves.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    stream = await read(client)
    for _ in range(2):
        with pytest.raises(ClientGone):
            await unless_gone(stream, work())
    assert ended.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_client_that_leaves_between_two_pieces_of_work_ends_the_second() -> None:
    client = Client()
    stream = await read(client)
    before = asyncio.all_tasks()
    await unless_gone(stream, client.watched.wait())
    watching = asyncio.all_tasks() - before
    client.leaves.set()
    await asyncio.wait(watching)
    with pytest.raises(ClientGone):
        await unless_gone(stream, asyncio.Event().wait())


async def test_nobody_waits_for_the_client_any_more_when_it_is_closed() -> None:
    client = Client()
    stream = await read(client)
    before = asyncio.all_tasks()
    await unless_gone(stream, client.watched.wait())
    watching = asyncio.all_tasks() - before
    assert len(watching) == 1
    stream.close()
    await asyncio.wait(watching)
    assert all(task.cancelled() for task in watching)


async def test_work_that_ends_at_once_costs_no_task() -> None:
    client = Client()
    stream = await read(client)

    async def work() -> None:
        await asyncio.sleep(0)

    before = asyncio.all_tasks()
    await unless_gone(stream, work())
    assert asyncio.all_tasks() == before
    stream.close()
    assert not client.watched.is_set()


async def test_work_that_ends_well_although_it_was_cancelled_keeps_its_result() -> None:
    client = Client()

    async def work() -> str:
        client.leaves.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "settled"
        return "never"

    assert await unless_gone(await read(client), work()) == "settled"
    await asyncio.sleep(0)  # a cancellation that is still due would come here


@pytest.mark.parametrize("leaves", [False, True], ids=["client stays", "client leaves too"])
async def test_a_task_that_another_cancels_is_cancelled(leaves: bool) -> None:
    client, working = Client(), asyncio.Event()

    async def work() -> None:
        working.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(unless_gone(await read(client), work()))
    await working.wait()
    if leaves:
        client.leaves.set()
        asyncio.get_running_loop().call_soon(task.cancel)
    else:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_still_sends_has_not_left() -> None:
    client = Client()
    client.leaves.set()
    stream = ClientStream(client.receive)

    async def work() -> int:
        return len([part async for part in stream.body()])

    assert await unless_gone(stream, work()) == 1
