"""Processor time for each request: that of a proxy's process beside others, on a machine that does other work too.

Throughput and latency say little where others use the same cores; what a process has computed for a request says more.
For each kind of request every target is sent the same number of them, round by round in turn, and the least of the
rounds counts: other work only ever adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench.load import CELLS, CONNECTIONS, Cell, in_turn, job_for, load_of, started
from bench.processes import DIRECT, STORES, Served, targets
from proxy.replaying.report import markdown as table_of

ROUNDS = 5
REQUESTS = {"small": 1_200, "medium": 800, "large": 320}
"""So many take about a second of the naive proxy."""


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of a target's processor time for each request of a kind: the least and the median of the rounds."""

    cell: str
    target: str
    least: float
    median: float


def measure(
    rounds: int = ROUNDS,
    stores: Sequence[str] = STORES[:2],
    only: str = "",
    connections: int = CONNECTIONS,
    peers: Sequence[str] = (),
    requests: int | None = None,
    protocols: Sequence[str] = ("chat",),
) -> list[Row]:
    """All rows; about three minutes for each protocol. Each round has `requests`, by default those of `REQUESTS`."""
    with targets(stores, peers) as found:
        measured = {name: target for name, target in found.items() if name != DIRECT}
        wanted = [cell for cell in CELLS if only in str(cell) and (only or cell.state != "cold")]
        cells = [replace(cell, protocol=protocol) for cell in wanted for protocol in protocols]
        return [
            row
            for cell in cells
            for row in _cell(cell, measured, rounds, connections, requests or REQUESTS[cell.payload])
        ]


def _cell(cell: Cell, found: Mapping[str, Served], rounds: int, connections: int, requests: int) -> list[Row]:
    """A row for each target; the first requests, which are not warm, are not counted."""
    each = max(requests // connections, 1)
    for target in found.values():
        _taken(cell, target, connections, 2)
    used = in_turn(list(found), rounds, lambda name: _taken(cell, found[name], connections, each))
    return [Row(str(cell), name, min(times), sorted(times)[len(times) // 2]) for name, times in used.items()]


def _taken(cell: Cell, target: Served, connections: int, each: int) -> float:
    """Milliseconds that a target computes for each request, of which every connection sends so many."""
    job = replace(job_for(cell, target.port, connections, seconds=0.0), least=each)
    before = target.cpu
    with started(job) as process:
        done = load_of(process)
    return (target.cpu - before) * 1_000 / done.requests


def markdown(rows: Sequence[Row]) -> str:
    """One line for each kind of request: the least times, and those of the others to ours."""
    names = list(dict.fromkeys(row.target for row in rows))
    ratios = [(other, name) for other in names if other not in STORES for name in names if name in STORES]
    least = {(row.cell, row.target): row.least for row in rows}

    head = ["CPU ms a request", *names, *(f"{other} / {name}" for other, name in ratios)]
    lines = [
        [cell, *(f"{least[cell, name]:.2f}" for name in names)]
        + [f"{least[cell, other] / least[cell, name]:.2f}" for other, name in ratios]
        for cell in dict.fromkeys(row.cell for row in rows)
    ]
    return table_of(" | ".join(head), lines)
