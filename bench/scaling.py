"""Workers: what `--workers N` makes of more cores, for small and for large requests.

The proxy may use all cores, and so may the upstream and the load generator, which take their part of them: on a machine
of few cores throughput cannot grow as the workers do. So look at the processor time of all workers for each request
too: where that stays what it is with one, nothing but cores is missing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from bench.load import Cell, job_for, load_of, started
from bench.processes import Served, condenser, stub
from bench.targets import store_url

CONNECTIONS = 32
SECONDS = 3.0
SHARED = ("sqlite", "redis")
"""The stores that several processes can share."""
CELLS = (Cell("small", False, "warm"), Cell("large", False, "warm"))


@dataclass(frozen=True, slots=True)
class Row:
    """So many workers over a store: requests a second, and milliseconds of processor time of all for each."""

    cell: str
    store: str
    workers: int
    rate: float
    cpu: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of it can be chosen on the command line."""
    most = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, most], help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement (default: %(default)s)")
    parser.add_argument("--stores", nargs="+", choices=SHARED, default=SHARED)


def measure(workers: Sequence[int] = (1, 2), seconds: float = SECONDS, stores: Sequence[str] = SHARED) -> list[Row]:
    """All rows; about a minute. A store that is not installed has none."""
    return [row for store in stores for number in workers for row in _rows(store, number, seconds)]


def _rows(store: str, workers: int, seconds: float) -> list[Row]:
    with ExitStack() as stack:
        url = store_url(store, stack)
        if url is None:
            return []
        upstream = stack.enter_context(stub())
        served = stack.enter_context(condenser(upstream.port, url, module="proxy", workers=workers))
        return [_row(cell, store, workers, served, seconds) for cell in CELLS]


def _row(cell: Cell, store: str, workers: int, served: Served, seconds: float) -> Row:
    _taken(cell, served, seconds / 3)
    before = served.cpu_of_all
    rate, requests = _taken(cell, served, seconds)
    return Row(str(cell), store, workers, rate, (served.cpu_of_all - before) * 1_000 / requests)


def _taken(cell: Cell, served: Served, seconds: float) -> tuple[float, int]:
    """Requests a second, and how many there were."""
    with started(job_for(cell, served.port, CONNECTIONS, seconds)) as process:
        done = load_of(process)
    return done.requests / done.seconds, done.requests


def markdown(rows: Sequence[Row]) -> str:
    """One line for each number of workers, with its ratios to the first of them."""
    lines = ["| request | store | workers | a second | to the first | CPU ms a request | to the first |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in sorted(rows, key=lambda each: (each.store, each.cell)):
        base = next(each for each in rows if (each.cell, each.store) == (row.cell, row.store))
        shown = f"{row.rate:,.0f} | {row.rate / base.rate:.2f} | {row.cpu:.2f} | {row.cpu / base.cpu:.2f}"
        lines.append(f"| {row.cell} | {row.store} | {row.workers} | {shown} |")
    return "\n".join(lines)


def document(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [asdict(row) for row in rows]
