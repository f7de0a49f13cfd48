"""How late the event loop gets: no callback may hold it for 15 ms while large cold requests mix with small ones.

The real app is served on asyncio's own loop, whose callbacks are timed one by one, in a process of its own
(`python -m bench.lag ARGUMENT …` takes the arguments of `condenser`). A thread looks where a callback is that takes
long, so that what held the loop is named by file and line. The load comes from two generators at once: small requests
one after the other, and requests of 100k tokens, either cold, or warm, or outgrowing their window.

Of each slow callback two times are told: that of the clock, and that of the processor for the loop's thread alone. On
a machine that does other work they differ by what its neighbours, or threads of the proxy's own, have taken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from asyncio.events import Handle
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, sleep, thread_time
from types import FrameType
from typing import Any

from bench.generator import Job
from bench.load import REPLAYED_WINDOW, load_of, started
from bench.processes import Served, condenser, stub
from bench.targets import STORES, store_url
from proxy.replaying import table

MOST = 15.0
"""Milliseconds that a callback may hold the loop for."""
SAMPLED_EVERY = 0.002
SECONDS = 10.0
VARIABLE = "LAG_REPORT"
STATES = ("cold", "warm", "condensing")
_OURS = ("proxy", "strategies")
_SHOWN = 5
GARBAGE = "the collection of garbage"


@dataclass(frozen=True, slots=True)
class Slow:
    """A callback that took long: milliseconds by the clock and of its thread's processor time, and where it was seen,
    the lines of ours that were seen most often first."""

    wall: float
    cpu: float
    places: list[str]


@dataclass(frozen=True, slots=True)
class Row:
    """What large requests in one `state` did to the loop over a `store`; times in milliseconds.

    `wall` and `cpu` are the most that a callback took; `slow` are the callbacks that held the loop's thread too long.
    """

    state: str
    store: str
    large: int
    small: int
    callbacks: int
    wall: float
    cpu: float
    small_p99: float
    slow: list[Slow]


class Watch:
    """Times every callback of the loops of this process, and looks where the long ones are."""

    def __init__(self) -> None:
        self.callbacks = 0
        self.slow: list[Slow] = []
        self._thread = threading.get_ident()
        self._since = 0.0
        self._places: Counter[str] = Counter()
        self._collecting = self._collected = 0.0

    def install(self) -> None:
        """Wraps what asyncio runs callbacks with; for a process that does nothing else."""
        run = Handle._run  # noqa: SLF001

        def timed(handle: Handle) -> None:
            self._places.clear()
            self._collected = 0.0
            self._since, used = perf_counter(), thread_time()
            try:
                run(handle)
            finally:
                wall, self._since = perf_counter() - self._since, 0.0
                self._over(wall * 1_000, (thread_time() - used) * 1_000)

        Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001
        threading.Thread(target=self._look, daemon=True).start()
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, _info: Mapping[str, int]) -> None:
        """A collection of garbage begins, or ends, in the loop's thread."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = perf_counter()
        else:
            self._collected += (perf_counter() - self._collecting) * 1_000

    def _over(self, wall: float, cpu: float) -> None:
        self.callbacks += 1
        if wall > MOST / 2:
            seen = [place for place, _ in self._places.most_common(_SHOWN)]
            self.slow.append(Slow(wall, cpu, [GARBAGE, *seen] if self._collected > wall / 2 else seen))

    def _look(self) -> None:
        while True:
            time.sleep(SAMPLED_EVERY)
            since = self._since
            if since and perf_counter() - since > SAMPLED_EVERY:
                frames = sys._current_frames()  # noqa: SLF001
                self._places[_place(frames[self._thread])] += 1


def _place(frame: FrameType | None) -> str:
    """The innermost lines of ours in a stack, and what they call."""
    lines: list[str] = []
    called = ""
    while frame is not None and len(lines) < 2:
        path = Path(frame.f_code.co_filename)
        name = f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        if any(part in _OURS for part in path.parts[-4:-1]):
            lines.append(f"{path.parent.name}/{name}")
        elif not lines and not called:
            called = f" calling {name}"
        frame = frame.f_back
    return " < ".join(lines) + called


def serve(arguments: Sequence[str]) -> None:
    """Serves as `condenser serve` does, watched; what was slow is written when it is told to."""
    from proxy.cli import parse
    from proxy.commands.options import settings_from
    from proxy.commands.serve import server_config
    from proxy.http.server import Server

    config = server_config(settings_from(parse(arguments)))
    # uvloop's callbacks cannot be timed one by one.
    config.loop = "asyncio"
    watch = Watch()
    watch.install()
    path = Path(os.environ[VARIABLE])

    def report(*_: object) -> None:
        told = {"callbacks": watch.callbacks, "slow": [asdict(each) for each in watch.slow]}
        watch.callbacks, watch.slow = 0, []
        path.with_suffix(".new").write_text(json.dumps(told))
        path.with_suffix(".new").rename(path)

    signal.signal(signal.SIGUSR1, report)
    asyncio.run(Server(config).serve())


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of it can be chosen on the command line."""
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each row (default: %(default)s)")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=("memory", "sqlite"))


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
    slow = sorted((Slow(**each) for each in told["slow"]), key=lambda each: -each.cpu)
    return Row(
        state, store, big.requests, little.requests, told["callbacks"],
        max((each.wall for each in slow), default=0.0), max((each.cpu for each in slow), default=0.0),
        sorted(little.completes)[len(little.completes) * 99 // 100], [each for each in slow if each.cpu > MOST],
    )  # fmt: skip


def _reported(served: Served, path: Path) -> dict[str, Any]:
    """What was slow since the last report."""
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
    """One line a row, and below what held the loop."""
    head = "large requests | store | large | small | callbacks | longest | of it CPU | over | small p99 | target"
    lines = []
    for row in rows:
        counts = [f"{number:,}" for number in (row.large, row.small, row.callbacks)]
        times = [f"{row.wall:.1f} ms", f"{row.cpu:.1f} ms", str(len(row.slow)), f"{row.small_p99:.0f} ms"]
        lines.append([row.state, row.store, *counts, *times, "missed" if row.slow else "met"])
    return "\n".join([table.markdown(head, lines, texts=(0, 1, -1)), "", *culprits(rows)])


def culprits(rows: Sequence[Row]) -> list[str]:
    """What held the loop too long, the worst first: how often, how long at most, and where it was seen."""
    found: dict[str, list[float]] = {}
    for slow in (each for row in rows for each in row.slow):
        found.setdefault(slow.places[0] if slow.places else "(not seen)", []).append(slow.cpu)
    worst = sorted(found.items(), key=lambda item: -max(item[1]))
    return [f"- {len(times)} x, at most {max(times):.1f} ms: `{place}`" for place, times in worst]


if __name__ == "__main__":
    serve(sys.argv[1:])
