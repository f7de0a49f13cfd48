"""Processor time for each request: that of a proxy's process, beside a naive one, on a machine with other work.

Throughput and latency say little where others use the same cores; what a process has computed for a request says more.
For each kind of request every target is sent the same number of them, round by round in turn, and the least of the
rounds counts: other work only ever adds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.load import CELLS, CONNECTIONS, NAIVE, Cell, job_for, load_of, started, store_url
from bench.processes import Served, condenser, naive, stub

ROUNDS = 5
STORES = ("memory", "sqlite", "redis")
REQUESTS = {"small": 1_600, "medium": 960, "large": 320}
"""So many take about a second and a half of the naive proxy."""


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of a target's processor time for each request of a kind: the least and the median of the rounds."""

    cell: str
    target: str
    least: float
    median: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of it can be chosen on the command line."""
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES[:2])
    parser.add_argument("--only", metavar="TEXT", default="", help="cells whose name has this in it, such as 'small'")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="(default: %(default)s)")


def measure(
    rounds: int = ROUNDS,
    stores: Sequence[str] = STORES[:2],
    only: str = "",
    connections: int = CONNECTIONS,
    requests: int | None = None,
) -> list[Row]:
    """All rows; about two minutes. So many `requests` in each round, by default those of `REQUESTS`."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        targets = {NAIVE: stack.enter_context(naive(upstream.port))}
        for name in stores:
            if (url := store_url(name, stack)) is not None:
                targets[name] = stack.enter_context(condenser(upstream.port, url))
        cells = [cell for cell in CELLS if cell.state != "cold" and only in str(cell)]
        return [
            row
            for cell in cells
            for row in _cell(cell, targets, rounds, connections, requests or REQUESTS[cell.payload])
        ]


def _cell(cell: Cell, targets: dict[str, Served], rounds: int, connections: int, requests: int) -> list[Row]:
    """A row for each target; the first requests, which are not warm, are not counted."""
    each, names = max(requests // connections, 1), list(targets)
    used: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        _taken(cell, targets[name], connections, 2)
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            used[name].append(_taken(cell, targets[name], connections, each))
    return [Row(str(cell), name, min(times), sorted(times)[len(times) // 2]) for name, times in used.items()]


def _taken(cell: Cell, target: Served, connections: int, each: int) -> float:
    """Milliseconds that a target computes for each request, of which every connection sends so many."""
    job = replace(job_for(cell, target, connections, seconds=0.0), least=each)
    before = target.cpu
    with started(job) as process:
        done = load_of(process)
    return (target.cpu - before) * 1_000 / done.requests


def markdown(rows: Sequence[Row]) -> str:
    """One line for each kind of request: the least times, and the naive one's to them."""
    targets = list(dict.fromkeys(row.target for row in rows))
    least = {(row.cell, row.target): row.least for row in rows}
    lines = [["CPU ms a request", *targets, *(f"naive / {name}" for name in targets if name != NAIVE)]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for cell in dict.fromkeys(row.cell for row in rows):
        times = [f"{least[cell, name]:.2f}" for name in targets]
        ratios = [f"{least[cell, NAIVE] / least[cell, name]:.2f}" for name in targets if name != NAIVE]
        lines.append([cell, *times, *ratios])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
