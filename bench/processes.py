"""Processes that are measured: started on ports of this machine, watched through /proc, ended by their own id."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from time import clock_gettime, perf_counter, sleep
from types import TracebackType
from typing import Self

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

READY_WITHIN = 30.0
END_WITHIN = 40.0
_SCHEDULED = 2
"""With the id of a process, complemented and shifted, the clock of its processor time on Linux, to nanoseconds."""
_MEGABYTE = 1024.0


class Served:
    """A process that listens on `port`; its command has `{port}` where that belongs.

    It runs on one core, `core`, where there are several, and stands ready when it is entered.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None, core: int = 0) -> None:
        self.port = free_port()
        self._command = [part.replace("{port}", str(self.port)) for part in command]
        self._environment = {**os.environ, **(environment or {})}
        self._core = core
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self.ready_after = 0.0
        """Seconds from its start until it took a connection."""

    def __enter__(self) -> Self:
        started = perf_counter()
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
        )
        pin(self._process.pid, self._core)
        try:
            self._wait(started)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.ready_after = perf_counter() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def _wait(self, started: float) -> None:
        while not _listens(self.port):
            if self.pid_is_gone() or perf_counter() - started > READY_WITHIN:
                raise RuntimeError(f"{' '.join(self._command)} does not listen: {self.said()}")
            sleep(0.005)

    def pid_is_gone(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2_000:].decode(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it has taken, with its threads."""
        return clock_gettime(~self.pid << 3 | _SCHEDULED)

    @property
    def resident(self) -> float:
        """Megabytes of memory that it has resident now."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / _MEGABYTE

    @property
    def descriptors(self) -> int:
        """How many file descriptors it has open now."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text()


def stub(every: int = 0) -> Served:
    """The upstream of `bench.stub`, on the last core, as the load; one of `every` so many answers is wrong."""
    return Served([sys.executable, "-m", "bench.stub", "{port}", str(every)], core=-1)


def condenser(
    upstream: int, store: str, *, module: str = "proxy", environment: Mapping[str, str] | None = None
) -> Served:
    """The proxy before the upstream on a port, with `half-window` in a window of 200k tokens."""
    where = ["--host", "127.0.0.1", "--port", "{port}", "--upstream", f"http://127.0.0.1:{upstream}/v1"]
    how = ["--store", store, "--strategy", "half-window", "--window", "200000"]
    return Served([sys.executable, "-m", module, "serve", *where, *how], environment)


def naive(upstream: int) -> Served:
    """The pass-through of `bench.naive` before the upstream on a port."""
    quiet = ["--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning", "--no-access-log"]
    command = [sys.executable, "-m", "uvicorn", "--factory", "bench.naive:app", *quiet]
    return Served(command, {"NAIVE_UPSTREAM": f"http://127.0.0.1:{upstream}/v1"})


@contextmanager
def connected(port: int) -> Iterator[HTTPConnection]:
    """A connection to a server on this machine."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        yield connection
    finally:
        connection.close()


def pin(pid: int, core: int) -> None:
    """Keeps a process on one core, counted from 0 or from the end, where there are several."""
    cores = sorted(os.sched_getaffinity(0))
    with suppress(ProcessLookupError):
        os.sched_setaffinity(pid, {cores[core]})


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


DIRECT, NAIVE = "direct", "naive"


STORES = ("memory", "sqlite", "redis")


AWECOMPRESS = "awecompress"


_AWECOMPRESS = "awecompress serve --host 127.0.0.1 --port {port} --upstream {stub}"


PEERS = {AWECOMPRESS: f"env AWECOMPRESS_CONFIG_DIR={{folder}} {_AWECOMPRESS}"}
"""What is measured too where it is installed, and how it is started."""


@contextmanager
def targets(stores: Sequence[str], peers: Sequence[str]) -> Iterator[dict[str, Served]]:
    """Everything that is measured, by its name; `peers` are more of them, each `NAME=COMMAND`."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        found = {DIRECT: upstream, NAIVE: stack.enter_context(naive(upstream.port))}
        for name in stores:
            if (url := store_url(name, stack)) is not None:
                found[name] = stack.enter_context(condenser(upstream.port, url))
        for name, command in _peers(peers):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            filled = command.replace("{stub}", f"http://127.0.0.1:{upstream.port}").replace("{folder}", folder)
            found[name] = stack.enter_context(Served(shlex.split(filled)))
        yield found


def store_url(name: str, stack: ExitStack) -> str | None:
    """The address of an empty store that lasts as long as the stack; None where it cannot be had."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'sessions.db'}"
    if name != "redis":
        raise ValueError(f"there is no store '{name}'")
    return stack.enter_context(RedisServer()).url if redis_available() else None


def _peers(more: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and commands of the peers that are installed, and of those that were asked for."""
    for name, command in PEERS.items():
        if shutil.which(name):
            yield name, command
    for each in more:
        name, _, command = each.partition("=")
        yield name, command
