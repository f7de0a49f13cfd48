"""A real redis-server on a free port: it can be killed, stopped, and started again at the same address.

    with RedisServer() as server:
        ... server.url ...
        server.kill()
        server.restart()

It keeps nothing on disk unless options say so (`RedisServer("--appendonly", "yes")`).
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import free_port
from tests.support.signals import BOUND

T = TypeVar("T")

NAME = "redis-server"
VALKEY = "valkey-server"
POLL = 0.01  # seconds between two questions whether it answers


def binary(name: str) -> str | None:
    """The program; where the system has none, deploy/ensure_redis.sh puts one beside the interpreter."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


class RedisServer:
    """Where none is installed the test skips and says how to get one, and fails if CI=true.

    `configuration` is the text of a file that makes it a Sentinel, which rewrites the file as it learns.
    """

    def __init__(self, *options: str, password: str = "", configuration: str = "", program: str = NAME) -> None:
        self._program = binary(program)
        if self._program is None:
            refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            refuse(f"{program} is not installed: `make redis`")
        self.password = password
        self._configuration = configuration
        self._options = options + (("--requirepass", password) if password else ())
        self._folder = tempfile.TemporaryDirectory(prefix="condenser-redis-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}/0"

    @property
    def folder(self) -> Path:
        """Where it runs and writes."""
        return Path(self._folder.name)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed; it may hang."""
        return self._process is not None

    def __enter__(self) -> Self:
        try:
            self.restart()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def restart(self) -> None:
        """Kill it if it runs; return when a new one answers at the same port."""
        self.start()
        self.await_answer()

    def start(self) -> None:
        """Kill it if it runs, and start it; it does not answer at once."""
        self.kill()
        self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL)

    def await_answer(self) -> None:
        """Returns when it answers."""
        deadline = time.monotonic() + BOUND
        while not self._answers():
            assert time.monotonic() < deadline, f"no answer within {BOUND} s; {self._log()}"
            self._wait_or_fail()

    def kill(self) -> None:
        """As a crash would: SIGKILL, no last words. A server that is down stays so."""
        if self._process is not None:
            self._process.kill()  # a stopped one too
            self._process.wait(BOUND)
            self._process = None

    def stop(self) -> None:
        """Hang it: connections are accepted by the kernel and nothing is answered."""
        os.kill(self._pid, signal.SIGSTOP)

    def cont(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    @property
    def _pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def _command(self) -> list[str]:
        fixed = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": self._folder.name,
            "logfile": "redis.log",
            "save": "",
            "appendonly": "no",
        }
        words = [word for key, value in fixed.items() for word in (f"--{key}", value)]
        return [str(self._program), *words, *self._options] if not self._configuration else self._sentinel()

    def _sentinel(self) -> list[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():
            fixed = f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nlogfile redis.log\n"
            file.write_text(fixed + self._configuration)
        return [str(self._program), str(file), "--sentinel"]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=BOUND) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))  # not while it says LOADING

    def _wait_or_fail(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(POLL)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(f"{NAME} ended with {self._process.returncode}; {self._log()}")

    def _log(self) -> str:
        log = Path(self._folder.name, "redis.log")
        return log.read_text(errors="replace")[-2000:] if log.exists() else "it wrote no log"


class RedisServers:
    """Several servers that make one store: a context manager around what `_start` starts on `_stack`."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        """Starts all servers; returns when they serve."""
        raise NotImplementedError


def answer_of(server: RedisServer, question: Callable[[Any], T]) -> T | None:
    """What a server says; None where it does not answer."""
    try:
        with asking(server.port) as client:
            return question(client)
    except (RedisError, OSError):
        return None


def asking(port: int) -> Redis:
    """A client that gives up soon and tries nothing twice; a context manager."""
    never = Retry(NoBackoff(), 0)
    return Redis(port=port, socket_timeout=0.5, socket_connect_timeout=0.5, retry=never, decode_responses=True)


def await_true(holds: Callable[[], bool], what: str, bound: float = 2 * BOUND, poll: float = POLL) -> None:
    """Asks every `poll` seconds until it holds: another process gives us nothing to wait on."""
    deadline = time.monotonic() + bound
    while not holds():
        assert time.monotonic() < deadline, f"not within {bound} s: {what}"
        threading.Event().wait(poll)
