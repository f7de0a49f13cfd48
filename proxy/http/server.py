"""The server: uvicorn with an orderly end of replies, in one process or in several.

On SIGTERM or SIGINT `/readyz` answers 503 at once. For `drain.delay` seconds connections are still accepted, so that a
load balancer has time to notice. Then running replies have `drain.timeout` seconds to end; those that still run are
cancelled, and `proxy/turn/layer.py` ends them with an error. A second signal ends the process at once. The exit
status is 0 in any case.

SIGHUP, which a terminal sends when it closes, ends nothing: the settings are read again. The supervisor does that for
all workers, and sends each one what it has read, so that they never differ. A worker that does not read keeps nobody
waiting. One whose event loop has been silent for `SILENT` seconds, or that does not run within `STARTING`, is killed,
and replaced like any that has ended. Workers whose supervisor has ended drain: nobody would replace them or tell them
anything.

On Linux workers are forks, and share the memory of what the supervisor has loaded. It must then run no thread and no
event loop when it starts one. Elsewhere they are new processes: macOS' own libraries do not survive a fork.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import wait
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
BEAT = 1.0  # seconds between two signs of life of a worker
SILENT, STARTING = 30.0, 90.0  # seconds without one after which a worker is killed, once it has shown one, and before
_LOOK = 0.5  # seconds between two looks of the supervisor at its workers
_TICK = 0.05
_HEAD, _CHUNK = 4, 65_536  # bytes of the length before settings that are sent, and that are read at once
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


async def give_back_memory() -> None:
    """Gives what was freed back to the system; does nothing if the allocator is not glibc's.

    It takes a millisecond, and without it the holes between what caches keep grow for an hour.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        await asyncio.to_thread(trim, 0)


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

    def __init__(self, config: ServerConfig, supervisor: socket.socket | None = None) -> None:
        super().__init__(config)
        self._settings, self._limits = config.settings, config.settings.drain
        self._supervisor = supervisor  # sends settings that were read again, and gets signs of life
        self._received, self._beats_at = b"", 0.0
        self._drain = Drain()
        self._app = config.make_app(config.settings, self._drain)
        self._renew = partial(config.renew, self._app)
        self._reread = config.reread
        config.app = lambda: self._app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        loop = asyncio.get_running_loop()
        if self._supervisor is not None:
            self._supervisor.setblocking(False)
            loop.add_reader(self._supervisor.fileno(), self._receive, self._supervisor)
        elif self._reread is not None:
            loop.add_signal_handler(signal.SIGHUP, self._read_again, self._reread)

    def _read_again(self, reread: Callable[[Settings, Renew], None]) -> None:
        reread(self._settings, self._use)

    async def on_tick(self, counter: int) -> bool:
        self._beat()
        return await super().on_tick(counter)

    def _beat(self) -> None:
        """Shows the supervisor that the event loop runs."""
        if self._supervisor is not None and monotonic() >= self._beats_at:
            self._beats_at = monotonic() + BEAT
            with suppress(OSError):  # it does not read, or has ended, which `_receive` notices
                self._supervisor.send(b".")

    def _receive(self, supervisor: socket.socket) -> None:
        try:
            read = supervisor.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            read = b""
        if not read:
            asyncio.get_running_loop().remove_reader(supervisor.fileno())
            if not self.should_exit:
                _log.error("the first process has ended, so this worker ends too")
                self.handle_exit(signal.SIGTERM, None)
            return
        self._received += read
        newest = None
        while len(self._received) >= (end := _HEAD + int.from_bytes(self._received[:_HEAD])) > _HEAD:
            newest, self._received = self._received[_HEAD:end], self._received[end:]
        if newest is not None:
            self._use(pickle.loads(newest))  # noqa: S301 - of the process that started this one

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
        while not (self.force_exit or is_done()) and monotonic() < ends:
            self._beat()
            await asyncio.sleep(_TICK)


def _serve(
    config: ServerConfig, sockets: list[socket.socket], supervisor: socket.socket, inherited: Sequence[socket.socket]
) -> None:
    """What a worker process does; `inherited` are the supervisor's own ends of links, which a fork has copied."""
    for each in inherited:
        each.close()
    # Those of the supervisor would end the other workers. uvicorn sets its own when it serves.
    for sig in (signal.SIGTERM, *_OF_TERMINALS):
        signal.signal(sig, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    Server(config, supervisor).run(sockets)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker as its supervisor sees it; nothing that is said to it waits for it."""

    process: BaseProcess
    link: socket.socket
    left: float = field(default_factory=lambda: STARTING)  # seconds in which it must show that it lives
    _sending: bytes = b""
    _newest: bytes = b""  # settings that are sent next; later ones take their place
    has_closed: bool = field(default=False, init=False)

    def give(self, settings: bytes) -> None:
        self._newest = len(settings).to_bytes(_HEAD) + settings
        self.send()

    def send(self) -> None:
        """Sends as much as the worker has room for."""
        try:
            while not self.has_closed and (self._sending or self._newest):
                if not self._sending:
                    self._sending, self._newest = self._newest, b""
                self._sending = self._sending[self.link.send(self._sending) :]
        except BlockingIOError:
            return
        except OSError:  # it has ended, and another takes its place
            self.has_closed = True

    def listen(self) -> None:
        """Notes signs of life, of which there are some if this is called."""
        try:
            self.has_closed |= not self.link.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.has_closed = True
        self.left = SILENT

    def end(self, sig: signal.Signals) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, sig)


class Supervisor:
    """Starts workers, replaces those that die, and passes signals on; a second signal kills all workers.

    `on_end` is called with the process id of each worker that has ended.
    uvicorn's own supervisor takes no other server than uvicorn's, which drains in another way.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], on_end: Callable[[int], None]) -> None:
        self._config, self._sockets, self._on_end = config, sockets, on_end
        self._workers: list[_Worker] = []
        self._has_hung_up = self._is_ending = False

    def run(self) -> bool:
        """Returns when all workers have ended after a signal, or because one could not start: then False."""
        signal.signal(signal.SIGHUP, self._on_hangup)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)
        has_started = True
        gc.collect()
        gc.freeze()  # a worker's collector leaves alone, and so shared, what there is now
        self._start(self._config.workers)
        if self._is_ending:  # a signal came while they were started
            self._end(signal.SIGTERM)
        looked = monotonic()
        while self._workers:
            ready = self._wait()
            # If this process was stopped itself, its workers were not silent for so long.
            looked, passed = monotonic(), min(monotonic() - looked, 2 * _LOOK)
            if self._has_hung_up and self._config.reread is not None:
                self._has_hung_up = False
                self._config.reread(self._config.settings, self._pass_on)
            for worker in list(self._workers):
                if worker.process.sentinel in ready:
                    has_started &= self._replace(worker)
                else:
                    self._attend(worker, passed, is_heard=worker.link in ready)
            if self._is_ending:  # perhaps since a moment, in which a worker was started
                self._end(signal.SIGTERM)
        return has_started

    def _wait(self) -> list[object]:
        """The sentinels of workers that have ended and the links of those that were heard, after a moment at most."""
        links = [worker.link for worker in self._workers if not worker.has_closed]
        return list(wait([*links, *(worker.process.sentinel for worker in self._workers)], _LOOK))

    def _attend(self, worker: _Worker, passed: float, *, is_heard: bool) -> None:
        """Hears a worker, or kills it if it has been silent for too long, and sends it what it has not read."""
        if is_heard:
            worker.listen()
        elif worker.left > 0:
            worker.left -= passed
            if worker.left <= 0:
                _log.error("a worker shows no sign of life, and is killed")
                worker.end(signal.SIGKILL)
        worker.send()

    def _replace(self, worker: _Worker) -> bool:
        """Starts another worker in the place of one that has ended; returns False if none could start."""
        worker.process.join()
        worker.link.close()
        self._workers.remove(worker)
        if worker.process.pid is not None:
            self._on_end(worker.process.pid)
        if worker.process.exitcode == STARTUP_FAILURE:
            self._is_ending = True
            return False
        if not self._is_ending:
            _log.error("a worker has ended with the status %s; another takes its place", worker.process.exitcode)
            sleep(RESTART_PAUSE)
            self._start(1)
        return True

    def _start(self, number: int) -> None:
        """Starts workers with signals blocked.

        Those of a terminal stay so, because it sends them to all processes, and they are passed on; SIGTERM does until
        a worker has handlers of its own.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, *_OF_TERMINALS))
        try:
            for _ in range(number):
                link, theirs = socket.socketpair()
                link.setblocking(False)
                inherited = (link, *(worker.link for worker in self._workers)) if FORKS else ()
                arguments = self._config, self._sockets, theirs, inherited
                process = _PROCESSES.Process(target=_serve, args=arguments)
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, link))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, *_OF_TERMINALS))

    def _pass_on(self, settings: Settings) -> None:
        """Sends settings to all workers; those that start later begin with them."""
        self._config.settings = settings
        for worker in self._workers:
            worker.give(pickle.dumps(settings))

    def _on_hangup(self, _sig: int, _frame: FrameType | None) -> None:
        self._has_hung_up = True  # which is seen at the next look

    def _on_signal(self, _sig: int, _frame: FrameType | None) -> None:
        ending = signal.SIGKILL if self._is_ending else signal.SIGTERM
        self._is_ending = True
        self._end(ending)

    def _end(self, sig: signal.Signals) -> None:
        for worker in list(self._workers):
            worker.end(sig)
