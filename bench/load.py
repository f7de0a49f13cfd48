"""The proxy under load: throughput, latency and processor time beside no proxy, a naive one, and peers.

An upstream stub and a load generator run on the last core, each proxy on the first one, all of them up at once. For
each kind of request every target is measured in turn, round by round, so that what the machine does beside it hits all
of them alike; what is shown are medians over the rounds.

`warm` is a turn of a session that is known, of which only the last message is new; `cold` a conversation of which no
message was seen before; `replay` a turn of a session whose first half is condensed. Throughput is that of 16
connections, latency that of one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from bench.generator import Job, Load
from bench.processes import Served, condenser, naive, pin, stub
from bench.serving import VARIABLE, profiled
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

CONNECTIONS = 16
ROUNDS = 3
SECONDS = 1.5
STORES = ("memory", "sqlite", "redis")
DIRECT, NAIVE = "direct", "naive"
REPLAYED_WINDOW = 96_000
"""A window that the large payload outgrows: it is condensed once, and that is replayed."""
JOB_WITHIN = 120.0
PEERS = {"awecompress": "awecompress serve --host 127.0.0.1 --port {port} --upstream {stub}"}
"""What is measured too where it is installed, and how it is started."""


Generating = subprocess.Popen[str]


class Goal(NamedTuple):
    """What a cell must reach: times the throughput of the naive proxy, and milliseconds that it may add."""

    times: float
    added: float


GOALS = {
    ("small", False): Goal(5.5, 0.5),
    ("small", True): Goal(7.0, 0.6),
    ("medium", False): Goal(4.0, 0.7),
    ("medium", True): Goal(4.0, 0.7),
    ("large", False): Goal(2.0, 2.5),
    ("large", True): Goal(2.0, 3.0),
}
REPLAY_CPU = 4.0
"""Milliseconds of processor time that a request may take which replays a condensation."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of request: `state` is `warm`, `cold` or `replay`."""

    payload: str
    streamed: bool
    state: str

    def __str__(self) -> str:
        return f"{self.payload}, {'streamed' if self.streamed else 'plain'}, {self.state}"

    @property
    def goal(self) -> Goal | None:
        """What it must reach; None for what is only shown."""
        return GOALS[self.payload, self.streamed] if self.state == "warm" else None


CELLS = tuple(
    Cell(payload, streamed, state)
    for payload in ("small", "medium", "large")
    for streamed in (False, True)
    for state in ("warm", "cold", *(["replay"] if payload == "large" else []))
)


@dataclass(frozen=True, slots=True)
class Row:
    """A target in a cell, medians over the rounds: requests a second, milliseconds of processor time for each, and
    milliseconds until a reply is complete and until its body begins, at the median and for all but one in 100."""

    cell: str
    target: str
    rate: float
    cpu: float | None
    p50: float
    p99: float
    first_p50: float
    first_p99: float
    requests: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of it can be chosen on the command line."""
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement (default: %(default)s)")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--only", metavar="TEXT", default="", help="cells whose name has this in it, such as 'small'")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", dest="peers",
                        help="a proxy more; its command has {port} and {stub}, the upstream's address")  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="print where the proxy's processor time goes instead")


def measure(
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    stores: Sequence[str] = STORES,
    only: str = "",
    peers: Sequence[str] = (),
    profile: bool = False,
) -> list[Row]:
    """All rows; about ten minutes with all cells and stores. With `profile` they are printed, and there are no rows."""
    cells = [cell for cell in CELLS if only in str(cell)]
    if profile:
        for cell in cells:
            print(f"## {cell}\n\n{_profile(cell, stores[0], seconds)}")
        return []
    with _targets(stores, peers) as targets:
        return [row for cell in cells for row in _cell(cell, targets, rounds, seconds)]


@contextmanager
def _targets(stores: Sequence[str], peers: Sequence[str]) -> Iterator[dict[str, Served]]:
    """Everything that is measured, up at once, by its name."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        targets = {DIRECT: upstream, NAIVE: stack.enter_context(naive(upstream.port))}
        for name in stores:
            if (url := store_url(name, stack)) is not None:
                targets[name] = stack.enter_context(condenser(upstream.port, url))
        for name, command in _peers(peers):
            filled = command.replace("{stub}", f"http://127.0.0.1:{upstream.port}")
            targets[name] = stack.enter_context(Served(shlex.split(filled)))
        yield targets


def store_url(name: str, stack: ExitStack) -> str | None:
    """The address of an empty store that lasts as long as the stack; None where it cannot be had."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'sessions.db'}"
    return stack.enter_context(RedisServer()).url if redis_available() else None


def _peers(more: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and commands of the peers that are installed, and of those that were asked for."""
    for name, command in PEERS.items():
        if shutil.which(name):
            yield name, command
    for each in more:
        name, _, command = each.partition("=")
        yield name, command


_NUMBERS = count(1, 1_000_000)
"""Where jobs begin to number their requests, so that no two have any in common."""


def _cell(cell: Cell, targets: dict[str, Served], rounds: int, seconds: float) -> list[Row]:
    """A row for each target; the order in which they are measured moves on with the rounds."""
    names = list(targets)
    measured: dict[str, list[Row]] = {name: [] for name in names}
    for name in names:
        _load(job_for(cell, targets[name], CONNECTIONS, 0.2))
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            measured[name].append(_once(cell, name, targets[name], seconds))
    return [_middle(each) for each in measured.values()]


def _once(cell: Cell, name: str, target: Served, seconds: float) -> Row:
    before = target.cpu
    many = _load(job_for(cell, target, CONNECTIONS, seconds))
    cpu = None if name == DIRECT else (target.cpu - before) * 1_000 / many.requests
    one = _load(job_for(cell, target, 1, seconds))
    times = (*_spread(one.completes), *_spread(one.first_bytes))
    return Row(str(cell), name, many.requests / many.seconds, cpu, *times, requests=many.requests)


def job_for(cell: Cell, target: Served, connections: int, seconds: float) -> Job:
    """What the load generator is to do for a cell; no two jobs have a request in common."""
    window = REPLAYED_WINDOW if cell.state == "replay" else None
    return Job(
        target.port, cell.payload, cell.streamed, cell.state == "cold", connections, seconds,
        least=2, first=next(_NUMBERS) % 100_000_000, window=window,
    )  # fmt: skip


@contextmanager
def started(job: Job) -> Iterator[Generating]:
    """A load generator at its job, on the last core; it has ended when this does."""
    command = [sys.executable, "-m", "bench.generator", json.dumps(asdict(job))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        pin(process.pid, -1)
        try:
            yield process
        finally:
            process.kill()


def load_of(process: Generating, within: float = JOB_WITHIN) -> Load:
    """What came of a generator's job, which ends in so many seconds; raises where a request failed."""
    said, wrong = process.communicate(timeout=within)
    if process.returncode:
        raise RuntimeError(f"the load generator failed: {wrong[-2_000:]}")
    return Load(**json.loads(said))


def _load(job: Job) -> Load:
    with started(job) as process:
        return load_of(process)


def _spread(times: Sequence[float]) -> tuple[float, float]:
    """The median, and what all but one in 100 stay under."""
    return median(times), quantiles(times, n=100, method="inclusive")[-1] if len(times) > 1 else times[0]


def _middle(rows: Sequence[Row]) -> Row:
    """The medians of several rows of a target."""
    names = ("rate", "p50", "p99", "first_p50", "first_p99")
    medians = {name: median(getattr(row, name) for row in rows) for name in names}
    used = [row.cpu for row in rows if row.cpu is not None]
    return replace(rows[0], **medians, cpu=median(used) if used else None, requests=sum(row.requests for row in rows))


def _profile(cell: Cell, store: str, seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "profile"
        upstream, url = stack.enter_context(stub()), store_url(store, stack)
        if url is None:
            raise RuntimeError(f"the store {store} is not installed")
        with condenser(upstream.port, url, environment={VARIABLE: str(path)}) as served:
            _load(job_for(cell, served, CONNECTIONS, 0.5))
            os.kill(served.pid, signal.SIGUSR1)
            done = _load(job_for(cell, served, CONNECTIONS, seconds))
        return f"{done.requests} requests\n{profiled(path)}"


def markdown(rows: Sequence[Row]) -> str:
    """One line for each target in each cell."""
    heads = ["request", "target", "a second", "x naive", "CPU", "added p50", "added p99", "added to first byte", "goal"]
    lines = [heads, ["---", "---", *["---:"] * 6, "---"]]
    by_place = {(row.cell, row.target): row for row in rows}
    for row in rows:
        direct, plain = by_place[row.cell, DIRECT], by_place[row.cell, NAIVE]
        lines.append([row.cell, row.target, f"{row.rate:,.0f}", f"{row.rate / plain.rate:.2f}", *_times(row, direct)])
        lines[-1].append(verdict(row, direct, plain))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _times(row: Row, direct: Row) -> list[str]:
    cpu = "-" if row.cpu is None else f"{row.cpu:.2f} ms"
    if row.target == DIRECT:
        return [cpu, *(f"({time:.2f} ms)" for time in (row.p50, row.p99, row.first_p50))]
    added = (row.p50 - direct.p50, row.p99 - direct.p99, row.first_p50 - direct.first_p50)
    return [cpu, *(f"{time:.2f} ms" for time in added)]


def verdict(row: Row, direct: Row, plain: Row) -> str:
    """`met`, or what was missed; "-" for what has no goal."""
    cell = next(cell for cell in CELLS if str(cell) == row.cell)
    if row.target not in STORES:
        return "-"
    if cell.state == "replay":
        return "met" if row.cpu is not None and row.cpu <= REPLAY_CPU else f"missed: {REPLAY_CPU:.0f} ms of CPU"
    if cell.goal is None:
        return "-"
    added = row.first_p50 - direct.first_p50 if cell.streamed else row.p50 - direct.p50
    missed = [f"{cell.goal.times:g} x"] if row.rate < cell.goal.times * plain.rate else []
    missed += [f"{cell.goal.added:g} ms"] if added > cell.goal.added else []
    return f"missed: {', '.join(missed)}" if missed else "met"


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
