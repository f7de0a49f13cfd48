"""Run an ASGI app under a real uvicorn: 127.0.0.1, a free port, a thread with a loop of its own."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp

from tests.support.signals import BOUND, Signal

GRACE = 2.0  # what a handler gets at shutdown before it is cancelled


class _Server(uvicorn.Server):
    """uvicorn that says when it is ready and stops at once: the stock one polls every 100 ms."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()  # started, or failed to
        self.stop = Signal()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self.settled.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stop.reached()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await _finish(self.server_state.tasks)
        await self.lifespan.shutdown()


async def _finish(tasks: set[asyncio.Task[None]]) -> None:
    if not tasks:
        return
    _, pending = await asyncio.wait(set(tasks), timeout=GRACE)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def listen() -> socket.socket:
    """A listening socket on a free port, so that nothing can take the port between choice and use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


@contextmanager
def serve(app: ASGIApp, *, lifespan: Literal["on", "off"] = "on", **options: Any) -> Iterator[str]:
    """Yield the app's base URL, `http://127.0.0.1:PORT`; on exit no thread and no socket is left."""
    settings: dict[str, Any] = {
        "access_log": False,
        "date_header": False,
        "server_header": False,
        "ws": "none",
        "log_config": None,
        "log_level": "error",
        # Longer than any client keeps a connection, so that none is closed just as it is used again.
        "timeout_keep_alive": 75,
        **options,
    }
    server = _Server(uvicorn.Config(app, lifespan=lifespan, proxy_headers=False, **settings))
    with listen() as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            _await_start(server)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop.set()
            thread.join(GRACE + BOUND)
            assert not thread.is_alive(), "the server did not stop"


def _await_start(server: _Server) -> None:
    assert server.settled.wait(BOUND), "the server did not start in time"
    assert server.started, "the server failed to start; see the captured log"
