"""The proxy under load: throughput and latency beside no proxy, a naive one, and peers.

An upstream stub and a load generator run on the last core, each proxy on the first one, all of them up at once. For
each kind of request every target is measured in turn, round by round, so that what the machine does beside it hits all
of them alike; what is shown are medians over the rounds.

Requests name no session, as those of most clients, so that a stored one is found by what was said. `warm` is a history
that is known with a new last message; `going on` a turn of a conversation, which ends with the reply to the request
before it and a new message; `named` as warm, but a turn of a session that a header names; `cold` a conversation of
which no message was seen before; `replay` as warm, where the first half is condensed. Throughput is that of 16
connections, latency that of one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from statistics import median
from typing import TypeVar

from bench.generator import Job, Load
from bench.processes import DIRECT, STORES, Served, pin, targets
from proxy.replaying.report import markdown as table_of

CONNECTIONS = 16
ROUNDS = 3
SECONDS = 1.5
REPLAYED_WINDOW = 96_000
"""A window that the large payload outgrows: it is condensed once, and that is replayed."""
TURNS = 20
"""Requests of a conversation that goes on, before the next one begins."""
JOB_WITHIN = 120.0

Generating = subprocess.Popen[str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of request: `state` is `warm`, `going on`, `named`, `cold` or `replay`."""

    payload: str
    streamed: bool
    state: str
    protocol: str = "chat"

    def __str__(self) -> str:
        named = "" if self.protocol == "chat" else f", {self.protocol}"
        return f"{self.payload}, {'streamed' if self.streamed else 'plain'}, {self.state}{named}"


def _states(payload: str, *, streamed: bool) -> tuple[str, ...]:
    """What is measured of a payload; how a reply comes has nothing to do with what a history costs."""
    if streamed:
        return ("warm",)
    return ("warm", "going on", "named", "cold", "replay") if payload == "large" else ("warm", "cold")


CELLS = tuple(
    Cell(payload, streamed, state)
    for payload in ("small", "medium", "large")
    for streamed in (False, True)
    for state in _states(payload, streamed=streamed)
)


@dataclass(frozen=True, slots=True)
class Row:
    """A target in a cell: requests a second, and milliseconds until a reply is complete and until its body begins.

    These are medians over the rounds.
    """

    cell: str
    target: str
    rate: float
    complete: float
    first_byte: float
    requests: int


def measure(
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    stores: Sequence[str] = STORES,
    only: str = "",
    peers: Sequence[str] = (),
) -> list[Row]:
    """All rows; about ten minutes for all targets."""
    cells = [cell for cell in CELLS if only in str(cell)]
    with targets(stores, peers) as found:
        return [row for cell in cells for row in _cell(cell, found, rounds, seconds)]


_NUMBERS = count(1, 100_000)
"""Where jobs begin to number their requests, so that no two of a thousand have any in common."""


def _cell(cell: Cell, found: Mapping[str, Served], rounds: int, seconds: float) -> list[Row]:
    for target in found.values():
        _load(job_for(cell, target.port, CONNECTIONS, 0.2))
    measured = in_turn(list(found), rounds, lambda name: _once(cell, name, found[name], seconds))
    return [_middle(each) for each in measured.values()]


def in_turn(names: Sequence[str], rounds: int, once: Callable[[str], T]) -> dict[str, list[T]]:
    """What `once` measures of each target, round by round; the order of the targets moves on with the rounds."""
    measured: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            measured[name].append(once(name))
    return measured


def _once(cell: Cell, name: str, target: Served, seconds: float) -> Row:
    many = _load(job_for(cell, target.port, CONNECTIONS, seconds))
    one = _load(job_for(cell, target.port, 1, seconds))
    times = median(one.completes), median(one.first_bytes)
    return Row(str(cell), name, many.requests / many.seconds, *times, requests=many.requests)


def job_for(cell: Cell, port: int, connections: int, seconds: float) -> Job:
    """What the load generator is to do for a cell; no two jobs have a request in common."""
    return Job(
        port, cell.payload, cell.streamed, cell.state == "cold", connections, seconds,
        least=2, first=next(_NUMBERS) % 100_000_000, window=REPLAYED_WINDOW if cell.state == "replay" else None,
        named=cell.state == "named", turns=TURNS if cell.state == "going on" else 1, protocol=cell.protocol,
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


def _middle(rows: Sequence[Row]) -> Row:
    """The medians of several rows of a target."""
    names = ("rate", "complete", "first_byte")
    medians = {name: median(getattr(row, name) for row in rows) for name in names}
    return replace(rows[0], **medians, requests=sum(row.requests for row in rows))


def markdown(rows: Sequence[Row]) -> str:
    """One line for each target in each cell."""
    others = [name for name in dict.fromkeys(row.target for row in rows) if name not in (DIRECT, *STORES)]
    ratios = [f"x {name}" for name in others]
    head = ["request", "target", "a second", *ratios, "added", "added to first byte"]
    lines = []
    for row in rows:
        beside = {each.target: each for each in rows if each.cell == row.cell}
        times = [f"{row.rate / beside[name].rate:.2f}" for name in others]
        lines.append([row.cell, row.target, f"{row.rate:,.0f}", *times, *_times(row, beside[DIRECT])])
    return table_of(" | ".join(head), lines, texts=(0, 1))


def _times(row: Row, direct: Row) -> list[str]:
    if row.target == DIRECT:
        return [f"({time:.2f} ms)" for time in (row.complete, row.first_byte)]
    return [f"{time:.2f} ms" for time in (row.complete - direct.complete, row.first_byte - direct.first_byte)]
