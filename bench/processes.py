"""Processes that are measured: started on ports of this machine, watched through /proc, ended by their own id."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import clock_gettime, perf_counter, sleep
from typing import NamedTuple

from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

READY_WITHIN = 30.0
END_WITHIN = 40.0
_SCHEDULED = 2
"""With the id of a process, complemented and shifted, the clock of its processor time on Linux, to nanoseconds."""
DIRECT, NAIVE = "direct", "naive"
STORES = ("memory", "sqlite", "redis")
AWECOMPRESS = "awecompress"
PEERS = {
    AWECOMPRESS: "env AWECOMPRESS_CONFIG_DIR={folder} awecompress serve"
    " --host 127.0.0.1 --port {port} --upstream {stub}"
}
"""Other proxies that are measured where they are installed, and how each is started."""


class Served(NamedTuple):
    """A process that listens on `port`."""

    port: int
    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it has taken, with its threads."""
        return clock_gettime(~self.pid << 3 | _SCHEDULED)

    def memory(self, field: str = "VmRSS") -> float:
        """Megabytes that it has resident now, or `VmHWM`: that it had at most."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str] | None = None, core: int = 0) -> Iterator[Served]:
    """A process that takes connections; its command has `{port}` where that belongs.

    It runs on one core, counted from 0 or from the end. Any error quotes the end of its log.
    """
    port = free_port()
    filled, known = [part.replace("{port}", str(port)) for part in command], {**os.environ, **(environment or {})}

    def listens() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(filled)} has ended")
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", port)) == 0

    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(filled, env=known, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[core]})
            wait_until(listens)
            yield Served(port, process.pid)
        except Exception as error:
            log.seek(0)
            error.add_note(log.read()[-2_000:].decode(errors="replace"))
            raise
        finally:
            process.terminate()
            try:
                process.wait(END_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until(is_so: Callable[[], bool], within: float = READY_WITHIN) -> None:
    """Returns once it is so; raises `TimeoutError` after so many seconds."""
    ends = perf_counter() + within
    while not is_so():
        if perf_counter() > ends:
            raise TimeoutError(f"not so within {within:g} seconds: {is_so.__qualname__}")
        sleep(0.005)


def stub() -> AbstractContextManager[Served]:
    """The upstream of `bench.stub`, on the last core, as the load."""
    return serving([sys.executable, "-m", "bench.stub", "{port}"], core=-1)


def condenser(
    upstream: int, store: str, *, module: str = "proxy", environment: Mapping[str, str] | None = None
) -> AbstractContextManager[Served]:
    """The proxy before the upstream on a port, with `half-window` in a window of 200k tokens."""
    where = ["--host", "127.0.0.1", "--port", "{port}", "--upstream", f"http://127.0.0.1:{upstream}/v1"]
    how = ["--store", store, "--strategy", "half-window", "--window", "200000"]
    return serving([sys.executable, "-m", module, "serve", *where, *how], environment)


def naive(upstream: int) -> AbstractContextManager[Served]:
    """The pass-through of `bench.naive` before the upstream on a port."""
    quiet = ["--host", "127.0.0.1", "--port", "{port}", "--log-level", "warning", "--no-access-log"]
    command = [sys.executable, "-m", "uvicorn", "--factory", "bench.naive:app", *quiet]
    return serving(command, {"NAIVE_UPSTREAM": f"http://127.0.0.1:{upstream}/v1"})


@contextmanager
def connected(port: int) -> Iterator[HTTPConnection]:
    """A connection to a server on this machine."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def targets(stores: Sequence[str], peers: Sequence[str]) -> Iterator[dict[str, Served]]:
    """Everything that is measured, by its name; `peers` are more of them, each `NAME=COMMAND`."""
    commands = {name: command for name, command in PEERS.items() if shutil.which(name)}
    commands |= dict(each.split("=", 1) for each in peers)
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        found = {DIRECT: upstream, NAIVE: stack.enter_context(naive(upstream.port))}
        for name in stores:
            if (url := store_url(name, stack)) is not None:
                found[name] = stack.enter_context(condenser(upstream.port, url))
        for name, command in commands.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            filled = command.replace("{stub}", f"http://127.0.0.1:{upstream.port}").replace("{folder}", folder)
            found[name] = stack.enter_context(serving(shlex.split(filled)))
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
