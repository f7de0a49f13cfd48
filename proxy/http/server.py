"""The server: uvicorn with an orderly end of replies, in one process or in several.

On SIGTERM or SIGINT `/readyz` answers 503 at once. For `drain.delay` seconds connections are still accepted, so that a
load balancer has time to notice. Then running replies have `drain.timeout` seconds to end; those that still run are
cancelled, and `proxy/serving/layer.py` ends them with an error. A second signal ends the process at once. The exit
status is 0 in any case. SIGHUP, which a terminal sends when it closes, ends nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from time import monotonic
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess, multiprocess

from proxy.package import LOGGER
from proxy.settings import DrainSettings

CUTTING = 2.0
"""Seconds in which cancelled replies must end."""
ANSWERING = 30
"""Seconds after which a worker that does not answer its supervisor is replaced. Busy machines start workers slowly."""
_TICK = 0.05
_log = logging.getLogger(LOGGER)


@dataclass(slots=True)
class Drain:
    """Tells the app how far the server is in stopping."""

    has_begun: bool = False
    """The server has been told to stop: `/readyz` answers 503."""
    is_over: bool = False
    """Replies that still run are cancelled, and must end with an error."""


def use_one_heap() -> None:
    """Makes all threads that start after this share one heap; does nothing if the allocator is not glibc's.

    By default each thread has a heap of its own, up to eight for each core. In every heap the objects of the caches lie
    between freed ones, and the process grows by tens of megabytes that nothing uses. Python's threads take turns
    anyway, so one heap costs them nothing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(-8, 1)  # M_ARENA_MAX


def note_hangup() -> None:
    _log.info("SIGHUP changes nothing: restart the proxy for it to read its settings again")


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, with the settings for draining; `make_app` makes the app of one process."""

    def __init__(self, make_app: Callable[[Drain], FastAPI], drain: DrainSettings, **options: Any) -> None:
        super().__init__(make_app, factory=True, timeout_worker_healthcheck=ANSWERING, **options)
        self.make_app = make_app
        self.drain = drain


class Server(uvicorn.Server):
    """One process that serves. A worker ignores a second signal, which its supervisor handles."""

    def __init__(self, config: ServerConfig, *, is_worker: bool = False) -> None:
        super().__init__(config)
        self._limits = config.drain
        self._is_worker = is_worker
        self._drain = Drain()
        config.app = partial(config.make_app, self._drain)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            if threading.current_thread() is threading.main_thread():
                hung_up = (lambda: None) if self._is_worker else note_hangup
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes a signal. It is not raised again at the end, because that would set the exit status."""
        self.force_exit = self.should_exit and not self._is_worker
        self.should_exit = self._drain.has_begun = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        began, state, limits = monotonic(), self.server_state, self._limits
        _log.info("shutting down; running replies: %d, seconds for them to end: %g", len(state.tasks), limits.timeout)
        await self._wait(limits.delay, lambda: False)
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        await self._wait(limits.timeout, lambda: not (state.tasks or state.connections))
        cut = await self._cut_replies()
        if not self.force_exit:
            await self.lifespan.shutdown()
        _log.info("shut down after %.1f s; replies that were cut: %d", monotonic() - began, cut)
        if self.force_exit:
            logging.shutdown()
            os._exit(0)  # ends all threads too

    async def _cut_replies(self) -> int:
        """Ends the replies that still run, and returns their number."""
        self._drain.is_over = True
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CUTTING)
            # Once the connections are closed, the last bytes have been written.
            await self._wait(CUTTING, lambda: not self.server_state.connections)
        return len(tasks)

    async def _wait(self, seconds: float, is_done: Callable[[], bool]) -> None:
        """Waits until `is_done`, or a second signal comes, or `seconds` have passed."""
        ends = monotonic() + seconds
        while not (self.force_exit or is_done()) and monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(_TICK)


class _Worker(multiprocess.Process):
    """A worker process that drains like a single process."""

    config: ServerConfig

    def start(self) -> None:
        """Starts the process with SIGINT blocked: a terminal sends it to all, and the supervisor passes signals on."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _healthcheck(self, timeout: float) -> bool | None:
        """Whether the worker says that its server has started; None if it does not answer in time or has ended."""
        try:
            self.parent_conn.send(b"ping")
            wait([self.parent_conn, self.process.sentinel], timeout)
            return bool(self.parent_conn.recv()) if self.parent_conn.poll() else None
        except (OSError, EOFError):
            return None

    @property
    def server(self) -> Server:
        if self._server is None:
            self._server = Server(self.config, is_worker=True)
        assert isinstance(self._server, Server)
        return self._server


class Supervisor(Multiprocess):
    """Starts workers, replaces those that die, and passes signals on; a second signal kills all workers."""

    def __init__(self, config: ServerConfig, sockets: list[socket.socket]) -> None:
        # uvicorn takes the class of its workers from here.
        multiprocess.Process = _Worker  # type: ignore[misc]
        super().__init__(config, sockets)
        self._is_ending = False
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)

    def _on_signal(self, sig: int, _frame: FrameType | None) -> None:
        """Ends the workers at once, because uvicorn looks for signals only now and then, and not at the end."""
        ending = signal.SIGKILL if self._is_ending else signal.SIGTERM
        self._is_ending = True
        self.signal_queue.append(sig)
        for worker in self.processes:
            if worker.pid is not None and worker.exitcode is None:
                os.kill(worker.pid, ending)

    def handle_hup(self) -> None:
        note_hangup()

    def keep_subprocess_alive(self) -> None:
        if not self._is_ending:
            super().keep_subprocess_alive()
