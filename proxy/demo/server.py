"""ASGI apps on real sockets: uvicorn on a free port of the loopback address, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

LOOPBACK = "127.0.0.1"
STARTED_WITHIN = 30.0
STOPPED_WITHIN = 5.0


class ServerError(Exception):
    """A server of the demo's did not start."""


class _Server(uvicorn.Server):
    """uvicorn that says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, and says so."""
        await super().startup(sockets)
        self.settled.set()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves; says at its end at the latest that it will not start any more."""
        try:
            super().run(sockets)
        finally:
            self.settled.set()


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Yields the base URL of `app` with its `/v1`; raises `ServerError`. On exit the socket is closed."""
    config = uvicorn.Config(
        app, log_config=None, log_level="error", access_log=False, timeout_graceful_shutdown=int(STOPPED_WITHIN)
    )
    server = _Server(config)
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        if not server.settled.wait(STARTED_WITHIN) or not server.started:
            raise ServerError("a server of the demo did not start")
        try:
            yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(2 * STOPPED_WITHIN)
