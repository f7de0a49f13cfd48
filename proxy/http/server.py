"""The server: uvicorn with an orderly end of replies, in one process or in several.

On SIGTERM or SIGINT `/readyz` answers 503 at once. For `drain.delay` seconds connections are still accepted, so that a
load balancer has time to notice. Then running replies have `drain.timeout` seconds to end; those that still run are
cancelled, and `proxy/turn/layer.py` ends them with an error. A second signal ends the process at once. The exit
status is 0 in any case.

SIGHUP, which a terminal sends when it closes, ends nothing: the settings are read again. The supervisor does that for
all workers, and sends each one what it has read, so that they never differ.

On Linux workers are forks, and share the memory of what the supervisor has loaded. It must then run no thread and no
event loop when it starts one. Elsewhere they are new processes: macOS' own libraries do not survive a fork.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE

from proxy import LOGGER
from proxy.settings import Settings

CUTTING = 2.0  # seconds in which cancelled replies must end
RESTART_PAUSE = 0.5  # seconds until a worker takes the place of one that has ended, which may have ended at once
_TICK = 0.05
_OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
_PROCESSES = get_context("fork") if sys.platform == "linux" else get_context("spawn")
FORKS = _PROCESSES.get_start_method() == "fork"
_log = logging.getLogger(LOGGER)


@dataclass(slots=True)
class Drain:
    """Tells the app how far the server is in stopping."""

    has_begun: bool = False  # the server has been told to stop: `/readyz` answers 503
    is_over: bool = False  # replies that still run are cancelled, and must end with an error


def use_one_heap() -> None:
    """Makes all threads that start after this share one heap; does nothing if the allocator is not glibc's.

    By default each thread has a heap of its own, up to eight for each core. In every heap the objects of the caches lie
    between freed ones, and the process grows by tens of megabytes that nothing uses. Python's threads take turns
    anyway, so one heap costs them nothing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(-8, 1)  # M_ARENA_MAX


def give_back_memory() -> None:
    """Gives what start-up has freed, about 4 MB, back to the system; does nothing if the allocator is not glibc's."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


Renew = Callable[[Settings], None]  # makes a running proxy use these settings


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, with the settings.

    `make_app` makes the app of one process, and `renew` gives it settings that were read again. `reread` is called with
    the settings that hold and with what makes others hold, which it calls if they are right.
    """

    def __init__(
        self,
        settings: Settings,
        make_app: Callable[[Settings, Drain], FastAPI],
        renew: Callable[[FastAPI, Settings], None],
        reread: Callable[[Settings, Renew], None] | None,
        **options: Any,
    ) -> None:
        super().__init__(make_app, factory=True, **options)
        self.settings, self.make_app, self.renew, self.reread = settings, make_app, renew, reread


class Server(uvicorn.Server):
    """One process that serves. A worker ignores a second signal, which its supervisor handles."""

    def __init__(self, config: ServerConfig, supervisor: Connection | None = None) -> None:
        super().__init__(config)
        self._settings, self._limits = config.settings, config.settings.drain
        self._supervisor = supervisor  # sends settings that were read again
        self._drain = Drain()
        self._app = config.make_app(config.settings, self._drain)
        self._renew = partial(config.renew, self._app)
        self._reread = config.reread
        config.app = lambda: self._app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        if self._supervisor is not None:
            loop.add_reader(self._supervisor.fileno(), self._receive, self._supervisor)
        elif self._reread is not None:
            loop.add_signal_handler(signal.SIGHUP, self._read_again, self._reread)

    def _read_again(self, reread: Callable[[Settings, Renew], None]) -> None:
        reread(self._settings, self._use)

    def _receive(self, supervisor: Connection) -> None:
        try:
            settings = supervisor.recv()
        except EOFError:  # it has been killed
            asyncio.get_running_loop().remove_reader(supervisor.fileno())
        else:
            self._use(settings)

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        self._renew(settings)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Notes a signal. It is not raised again at the end, because that would set the exit status."""
        self.force_exit = self.should_exit and self._supervisor is None
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


def _serve(
    config: ServerConfig, sockets: list[socket.socket], supervisor: Connection, inherited: Sequence[Connection]
) -> None:
    """What a worker process does; `inherited` are the supervisor's own ends of pipes, which a fork has copied."""
    for each in inherited:
        each.close()
    # Those of the supervisor would end the other workers. uvicorn sets its own when it serves.
    for sig in (signal.SIGTERM, *_OF_TERMINALS):
        signal.signal(sig, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    Server(config, supervisor).run(sockets)


class Supervisor:
    """Starts workers, replaces those that die, and passes signals on; a second signal kills all workers.

    `on_end` is called with the process id of each worker that has ended.
    uvicorn's own supervisor takes no other server than uvicorn's, which drains in another way.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], on_end: Callable[[int], None]) -> None:
        self._config, self._sockets, self._on_end = config, sockets, on_end
        self._workers: dict[BaseProcess, Connection] = {}  # each with what sends it settings
        self._hangups, self._hang_up = _PROCESSES.Pipe(duplex=False)
        self._is_ending = False

    def run(self) -> bool:
        """Returns when all workers have ended after a signal, or because one could not start: then False."""
        signal.signal(signal.SIGHUP, lambda _sig, _frame: self._hang_up.send_bytes(b"1"))
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)
        has_started = True
        gc.collect()
        gc.freeze()  # a worker's collector leaves alone, and so shared, what there is now
        self._start(self._config.workers)
        if self._is_ending:  # a signal came while they were started
            self._end(signal.SIGTERM)
        while self._workers:
            ready = wait([self._hangups, *(worker.sentinel for worker in self._workers)])
            if self._hangups in ready:
                self._read_again()
            for ended in [worker for worker in self._workers if worker.sentinel in ready]:
                ended.join()
                self._workers.pop(ended).close()
                if ended.pid is not None:
                    self._on_end(ended.pid)
                if ended.exitcode == STARTUP_FAILURE:
                    has_started, self._is_ending = False, True
                elif not self._is_ending:
                    _log.error("a worker has ended with the status %s; another takes its place", ended.exitcode)
                    sleep(RESTART_PAUSE)
                    self._start(1)
            if self._is_ending:  # perhaps since a moment, in which a worker was started
                self._end(signal.SIGTERM)
        return has_started

    def _start(self, number: int) -> None:
        """Starts workers with signals blocked.

        Those of a terminal stay so, because it sends them to all processes, and they are passed on; SIGTERM does until
        a worker has handlers of its own.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, *_OF_TERMINALS))
        try:
            for _ in range(number):
                received, sent = _PROCESSES.Pipe(duplex=False)
                inherited = (self._hangups, self._hang_up, sent, *self._workers.values()) if FORKS else ()
                arguments = self._config, self._sockets, received, inherited
                worker = _PROCESSES.Process(target=_serve, args=arguments)
                worker.start()
                received.close()
                self._workers[worker] = sent
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, *_OF_TERMINALS))

    def _read_again(self) -> None:
        self._hangups.recv_bytes()
        if self._config.reread is not None:
            self._config.reread(self._config.settings, self._pass_on)

    def _pass_on(self, settings: Settings) -> None:
        """Sends settings to all workers; those that start later begin with them."""
        self._config.settings = settings
        for worker in self._workers.values():
            with suppress(OSError):  # it has ended, and another takes its place
                worker.send(settings)

    def _on_signal(self, _sig: int, _frame: FrameType | None) -> None:
        ending = signal.SIGKILL if self._is_ending else signal.SIGTERM
        self._is_ending = True
        self._end(ending)

    def _end(self, sig: signal.Signals) -> None:
        for worker in list(self._workers):
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, sig)
