"""Serves ASGI apps on real sockets: uvicorn in a thread of its own, on a free port of the loopback address."""

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
    """A server of the demo did not start."""


class _Server(uvicorn.Server):
    """A uvicorn server that sets an event once it has started, or failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, then sets the event."""
        await super().startup(sockets)
        self.settled.set()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves; sets the event at the latest when it ends, in case it never started."""
        try:
            super().run(sockets)
        finally:
            self.settled.set()


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serves `app` and yields its base URL, `/v1` included; raises `ServerError`. On exit the socket is closed."""
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
