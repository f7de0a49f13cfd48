"""How late the event loop gets: no callback may hold it for 15 ms while large cold requests mix with small ones.

The real app is served on asyncio's own loop, whose callbacks are timed one by one, in a process of its own
(`python -m bench.lag ARGUMENT …` takes the arguments of `condenser`). The load comes from two generators at once: small
requests one after the other, and requests of 100k tokens, either cold, or warm, or outgrowing their window.

A callback is timed by the clock and by the processor, for the loop's thread alone. On a machine that does other work
these differ by what its neighbours, or threads of the proxy's own, have taken; what counts is the processor's time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from asyncio.events import Handle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any

from bench.generator import Job
from bench.load import REPLAYED_WINDOW, load_of, started
from bench.processes import Served, condenser, store_url, stub
from proxy.replaying.report import markdown as table_of

MAX_MS = 15.0
"""Milliseconds that a callback may hold the loop for."""
SECONDS = 10.0
VARIABLE = "LAG_REPORT"
STATES = ("cold", "warm", "condensing")


@dataclass(frozen=True, slots=True)
class Row:
    """What large requests in one `state` did to the loop over a `store`; times in milliseconds.

    `wall` and `cpu` are the most that a callback took, and `over` is how many held the loop's thread too long.
    """

    state: str
    store: str
    large: int
    small: int
    callbacks: int
    wall: float
    cpu: float
    over: int
    small_p99: float


class Watch:
    """Times every callback of the loops of this process; all figures since the last report, in milliseconds."""

    def __init__(self) -> None:
        self.callbacks = self.over = 0
        self.wall = self.cpu = 0.0

    def install(self) -> None:
        """Wraps what asyncio runs callbacks with; for a process that does nothing else."""
        run = Handle._run  # noqa: SLF001

        def timed(handle: Handle) -> None:
            since, used = perf_counter(), thread_time()
            try:
                run(handle)
            finally:
                self._add((perf_counter() - since) * 1_000, (thread_time() - used) * 1_000)

        Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001

    def _add(self, wall: float, cpu: float) -> None:
        self.callbacks += 1
        self.wall, self.cpu = max(self.wall, wall), max(self.cpu, cpu)
        self.over += cpu > MAX_MS

    def report(self) -> dict[str, float]:
        """The figures, which begin anew."""
        found = dict(vars(self))
        self.callbacks = self.over = 0
        self.wall = self.cpu = 0.0
        return found


def serve(arguments: Sequence[str]) -> None:
    """Serves as `condenser serve` does, watched; the figures are written at SIGUSR1."""
    from proxy.app import server_config
    from proxy.cli import parse
    from proxy.commands.options import settings_from
    from proxy.http.server import Server

    config = server_config(settings_from(parse(arguments)))
    # uvloop's callbacks cannot be timed one by one.
    config.loop = "asyncio"
    watch = Watch()
    watch.install()
    path = Path(os.environ[VARIABLE])

    def report(*_: object) -> None:
        path.with_suffix(".new").write_text(json.dumps(watch.report()))
        path.with_suffix(".new").rename(path)

    signal.signal(signal.SIGUSR1, report)
    asyncio.run(Server(config).serve())


def measure(seconds: float = SECONDS, stores: Sequence[str] = ("memory", "sqlite")) -> list[Row]:
    """All rows: for every store and state one."""
    return [row for store in stores for row in _rows(store, seconds)]


def _rows(store: str, seconds: float) -> list[Row]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        path, upstream, url = Path(folder) / "report", stack.enter_context(stub()), store_url(store, stack)
        if url is None:
            return []
        served = stack.enter_context(_watched(upstream.port, url, path))
        _reported(served, path)
        return [_row(state, store, served, path, seconds) for state in STATES]


def _watched(upstream: int, store: str, report: Path) -> Served:
    return condenser(upstream, store, module="bench.lag", environment={VARIABLE: str(report)})


def _row(state: str, store: str, served: Served, path: Path, seconds: float) -> Row:
    number = 1_000_000 * (STATES.index(state) + 1)
    window = REPLAYED_WINDOW if state == "condensing" else None
    cold = state != "warm"
    large = Job(served.port, "large", True, cold, 2, seconds, least=2, first=number, window=window)
    small = Job(served.port, "small", False, False, 2, seconds, first=number + 500_000)
    with started(large) as first, started(small) as second:
        big, little = load_of(first), load_of(second)
    told = _reported(served, path)
    p99 = sorted(little.completes)[len(little.completes) * 99 // 100]
    return Row(state, store, big.requests, little.requests, **told, small_p99=p99)


def _reported(served: Served, path: Path) -> dict[str, Any]:
    path.unlink(missing_ok=True)
    os.kill(served.pid, signal.SIGUSR1)
    ends = perf_counter() + 10
    while not path.exists():
        if perf_counter() > ends:
            raise TimeoutError(f"no report: {served.said()}")
        sleep(0.01)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def markdown(rows: Sequence[Row]) -> str:
    head = "large requests | store | large | small | callbacks | longest | of it CPU | over | small p99 | target"
    lines = []
    for row in rows:
        counts = [f"{number:,}" for number in (row.large, row.small, row.callbacks)]
        times = [f"{row.wall:.1f} ms", f"{row.cpu:.1f} ms", str(row.over), f"{row.small_p99:.0f} ms"]
        lines.append([row.state, row.store, *counts, *times, "missed" if row.over else "met"])
    return table_of(head, lines, texts=(0, 1, -1))


if __name__ == "__main__":
    serve(sys.argv[1:])
