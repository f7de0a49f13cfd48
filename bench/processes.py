"""Processes that are measured: started on ports of this machine, watched through /proc, ended by their own id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import clock_gettime, perf_counter, sleep
from typing import NamedTuple

from tests.support.ports import free_port
from tests.support.redis_server import NAME, RedisServer, binary

READY_WITHIN = 30.0
END_WITHIN = 40.0
_SCHEDULED = 2
"""With the id of a process, complemented and shifted, the clock of its processor time on Linux, to nanoseconds."""
DIRECT, NAIVE = "direct", "naive"
STORES = ("memory", "sqlite", "redis")
AWECOMPRESS = "awecompress"
"""Another proxy, which is measured where it is installed."""
_PORT = "{port}"
_HERE = ("--host", "127.0.0.1", "--port", _PORT)


class Served(NamedTuple):
    """A process that listens on `port`."""

    port: int
    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of processor time that it has taken, with its threads."""
        return clock_gettime(~self.pid << 3 | _SCHEDULED)


@contextmanager
def serving(command: Sequence[str], environment: Mapping[str, str] | None = None, core: int = 0) -> Iterator[Served]:
    """A process that takes connections; its command has `{port}` where that belongs.

    It runs on one core, counted from 0 or from the end. Any error quotes the end of its log.
    """
    port = free_port()
    filled = [str(port) if part == _PORT else part for part in command]

    def listens() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(filled)} has ended")
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", port)) == 0

    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(filled, env={**os.environ, **(environment or {})}, stdout=log, stderr=log) as process,
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


def wait_until(is_so: Callable[[], bool]) -> None:
    """Returns once it is so; raises `TimeoutError` after `READY_WITHIN` seconds."""
    ends = perf_counter() + READY_WITHIN
    while not is_so():
        if perf_counter() > ends:
            raise TimeoutError(f"not so within {READY_WITHIN:g} seconds: {is_so.__qualname__}")
        sleep(0.005)


def stub(wrong: int = 0) -> AbstractContextManager[Served]:
    """The upstream of `bench.stub`, on the last core, as the load; with `wrong`, one answer in that many is."""
    return serving([sys.executable, "-m", "bench.stub", _PORT, str(wrong)], core=-1)


def condenser(
    upstream: int, store: str, *, module: str = "proxy", environment: Mapping[str, str] | None = None
) -> AbstractContextManager[Served]:
    """The proxy before the upstream on a port, with `half-window` in a window of 200k tokens."""
    how = ["--upstream", f"http://127.0.0.1:{upstream}/v1", "--store", store]
    command = [sys.executable, "-m", module, "serve", *_HERE, *how, "--strategy", "half-window", "--window", "200000"]
    return serving(command, environment)


@contextmanager
def targets(stores: Sequence[str]) -> Iterator[dict[str, Served]]:
    """Everything that is measured, by its name."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        url = f"http://127.0.0.1:{upstream.port}"
        command = [sys.executable, "-m", "uvicorn", "--factory", "bench.naive:app", *_HERE, "--no-access-log"]
        found = {DIRECT: upstream, NAIVE: stack.enter_context(serving(command, {"NAIVE_UPSTREAM": f"{url}/v1"}))}
        for name in stores:
            if (store := store_url(name, stack)) is not None:
                found[name] = stack.enter_context(condenser(upstream.port, store))
        if shutil.which(AWECOMPRESS):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            command = [AWECOMPRESS, "serve", *_HERE, "--upstream", url]
            found[AWECOMPRESS] = stack.enter_context(serving(command, {"AWECOMPRESS_CONFIG_DIR": folder}))
        yield found


def store_url(name: str, stack: ExitStack) -> str | None:
    """The address of an empty store that lasts as long as the stack; None where it cannot be had."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'sessions.db'}"
    return stack.enter_context(RedisServer()).url if binary(NAME) else None
