"""A TCP relay that hands each new connection to the next of its targets: a load balancer without opinions.

with relay([one, two]) as (url, targets):
    targets.remove(one)  # connections that it has stay
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from urllib.parse import urlsplit

from tests.support.server import listen
from tests.support.signals import BOUND


@contextmanager
def relay(targets: list[str]) -> Iterator[str]:
    """Its own address; the list, which may change meanwhile, has the addresses of its targets."""
    turns, open_now = count(), set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connect(reader, writer))
        open_now.add(task)
        task.add_done_callback(open_now.discard)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(targets[next(turns) % len(targets)])
        try:
            inner = await asyncio.open_connection(target.hostname, target.port)
        except OSError:  # the client sees its connection closed
            writer.close()
        else:
            await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))

    async def serve() -> None:
        with listen() as listener:
            server = await asyncio.start_server(connected, sock=listener)
            started.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            ready.set()
            await stop.wait()
            server.close()
            await asyncio.gather(*open_now)  # clients and targets have closed theirs

    loop, stop, ready, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event(), list[str]()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(BOUND), "the relay did not start"
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(BOUND)
        assert not thread.is_alive(), "the relay did not stop"
        loop.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the other side is gone, which its peer sees
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
