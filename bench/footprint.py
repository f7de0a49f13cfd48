"""What it takes to be there: seconds until it serves, and memory after many sessions on Redis.

Ready is when `/readyz` says so, from the start of the process. Memory is what is resident, in megabytes: when it is
ready, after so many named sessions of small conversations, and after many forks of one history, each of which ends with
another message.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from http.client import HTTPConnection
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.processes import Served, condenser, store_url, stub, wait_until
from bench.traffic import Job, sent

SESSIONS = 10_000
FORKS = 3_000
CLIENTS = 8
STARTS = 3
MAX_RESIDENT = 150.0
MAX_SECONDS = 1.5
FORKED_WINDOW = 24_000
"""A window of which the medium payload takes so much that each fork of it is a session that is stored."""


def measure(sessions: int = SESSIONS, forks: int = FORKS, starts: int = STARTS) -> list[dict[str, Any]]:
    """All rows; two minutes. In memory where Redis is not installed."""
    with ExitStack() as stack:
        store = store_url("redis", stack) or "memory://"
        upstream = stack.enter_context(stub())
        seconds = median(_start(upstream, store) for _ in range(starts))
        served = stack.enter_context(condenser(upstream.port, store))
        rows = [row("start to ready, median, s", seconds, MAX_SECONDS), row("ready, MB", resident(served))]
        clients: dict[str, Any] = {"port": served.port, "connections": CLIENTS}
        sent(Job("small", cold=True, named=True, least=-(-sessions // CLIENTS), first=1, **clients))
        rows.append(row(f"after {sessions:,} sessions, MB", resident(served), MAX_RESIDENT))
        sent(Job("medium", window=FORKED_WINDOW, least=-(-forks // CLIENTS), **clients))
        rows.append(row(f"after {forks:,} forks of a history, MB", resident(served)))
    return rows


def _start(upstream: Served, store: str) -> float:
    started_at = perf_counter()
    with condenser(upstream.port, store) as served:
        wait_until(lambda: _is_ready(served.port))
        return perf_counter() - started_at


def _is_ready(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def resident(served: Served) -> float:
    lines = Path(f"/proc/{served.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def row(what: str, figure: float, most: float = inf) -> dict[str, Any]:
    """A figure, and what it may be; infinite where that is not said."""
    if most == inf:
        return {"what": what, "figure": figure, "at most": "-", "target": "-"}
    return {"what": what, "figure": figure, "at most": most, "target": "met" if figure <= most else "missed"}
