"""Replicas of the proxy: real processes of `condenser serve`, each on a port of its own.

with replicas(3, upstream.url, redis.url, strategy="extract", window=8_000) as urls:
    ...
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

from tests.support import wire
from tests.support.ports import free_port
from tests.support.redis_server import await_true
from tests.support.signals import BOUND

ROOT = Path(__file__).parents[2]
SERVE = "from proxy.cli import main; raise SystemExit(main())"


@contextmanager
def replicas(number: int, upstream: str, store: str, *, strategy: str, window: int, **more: str) -> Iterator[list[str]]:
    """The addresses of `number` replicas before one upstream and on one store; all have ended on exit."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(replica(upstream, store, strategy, window, None, **more)) for _ in range(number)
        ]
        for url, process in processes:
            await_answer(url, process)
        yield [url for url, _ in processes]


@contextmanager
def replica(
    upstream: str, store: str, strategy: str, window: int, log: Path | None = None, **more: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of one replica, which need not answer yet, and its process.

    Its standard error goes to `log`; `more` are settings by the names of their environment variables.
    """
    port = free_port()
    options = {"port": str(port), "upstream": upstream, "store": store, "strategy": strategy}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    # What is prepared in the background is ready sooner or later; whoever compares bytes cannot have that.
    settings = {"CONDENSER_WINDOW": str(window), "CONDENSER_BACKGROUND__MODE": "off", **more}
    with (
        open(log or os.devnull, "wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", *words],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """As an operator does it; a replica that does not end in time is killed."""
    process.terminate()
    try:
        process.wait(BOUND)
    except subprocess.TimeoutExpired:
        process.kill()


def await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    """Returns when a replica answers."""
    await_true(lambda: _answers(url, process), f"a replica at {url}", 4 * BOUND)


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"the replica at {url} ended with {process.returncode}"
    try:
        return wire.request(url, "GET", "/livez").status == 200
    except (OSError, HTTPException):
        return False
