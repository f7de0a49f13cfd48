"""What it takes to be there: seconds until it serves, and memory after many sessions on Redis, and over a while.

Ready is when `/readyz` says so, from the start of the process. Memory is what is resident, in megabytes: when it is
ready, after so many named sessions of small conversations, after many forks of one history, each of which ends with
another message, and once a minute under a mix of requests (`--minutes`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep

from bench.generator import Job
from bench.load import TURNS, load_of, started
from bench.processes import Served, condenser, connected, stub
from proxy.replaying.report import markdown as table_of
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

SESSIONS = 10_000
FORKS = 3_000
CLIENTS = 8
STARTS = 3
MAX_RESIDENT = 150.0
MAX_SECONDS = 1.5
FORKED_WINDOW = 24_000
"""A window of which the medium payload takes so much that each fork of it is a session that is stored."""
EVERY = 8
"""Of how many answers of the upstream one is wrong in a soak."""
MIX = (
    ("small", None, True, "half-window", "off"),
    ("medium", 6_000, True, "mask+half-window", "inject"),
    ("medium", 6_000, True, "summary", "tool"),
    ("medium", None, True, "dynacontext", "inject+tool"),
    ("medium", 5_000, True, "semantic", "off"),
    ("medium", 6_000, True, "extract", "inject"),
    ("large", 96_000, False, "rolling", "inject+tool"),
    ("large", 64_000, False, "mask+summary", "inject"),
)
"""Payload, window, whether each request is a new conversation, strategy and memory of the requests of a soak."""
RATE = 3.0
"""Requests a second of each line of `MIX`, at most."""
FLAT = 1.05
"""How much more may be resident at the end of a soak than after its first third."""
_SLICE = 60.0
_NUMBERS = 1_000_000
_READY_WITHIN = 30.0
_SENT_WITHIN = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, in its unit; `most` is what it may be, None where that is not said."""

    what: str
    figure: float
    unit: str
    most: float | None = None


def measure(sessions: int = SESSIONS, forks: int = FORKS, minutes: float = 0.0, starts: int = STARTS) -> list[Row]:
    """All rows; two minutes without a soak. Over SQLite's memory where Redis is not installed."""
    if minutes:
        return soak(minutes)
    with ExitStack() as stack:
        store = stack.enter_context(RedisServer()).url if redis_available() else "memory://"
        upstream = stack.enter_context(stub())
        seconds = [_start(upstream, store) for _ in range(starts)]
        served = stack.enter_context(condenser(upstream.port, store))
        rows = [Row("start to ready, median", median(seconds), "s", MAX_SECONDS), Row("ready", served.resident, "MB")]
        _sent(Job(served.port, "small", False, True, CLIENTS, 0.0, -(-sessions // CLIENTS), first=1, named=True))
        rows.append(Row(f"after {sessions:,} sessions", served.resident, "MB", MAX_RESIDENT))
        _sent(Job(served.port, "medium", False, False, CLIENTS, 0.0, -(-forks // CLIENTS), window=FORKED_WINDOW))
        rows.append(Row(f"after {forks:,} forks of a history", served.resident, "MB"))
    return rows


def _start(upstream: Served, store: str) -> float:
    started_at = perf_counter()
    with condenser(upstream.port, store) as served:
        while not _is_ready(served.port):
            if perf_counter() - started_at > _READY_WITHIN:
                raise TimeoutError(f"it was not ready: {served.said()}")
            sleep(0.01)
        return perf_counter() - started_at


def _is_ready(port: int) -> bool:
    with connected(port) as connection:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def _sent(job: Job) -> None:
    with started(job) as process:
        load_of(process, within=_SENT_WITHIN)


def soak(minutes: float) -> list[Row]:
    """The memory under a mix of requests with faults, a line a minute, and how it grew after the first third."""
    slices = max(round(minutes * 60 / _SLICE), 3)
    with ExitStack() as stack:
        folder, upstream = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(stub(EVERY))
        served = stack.enter_context(condenser(upstream.port, f"sqlite:///{folder}/soak.db"))
        resident, requests = [served.resident], 0
        print("| minute | MB | requests | descriptors |\n| ---: | ---: | ---: | ---: |", file=sys.stderr)
        for number in range(slices):
            requests += _mixed(served.port, minutes * 60 / slices, 40_000_000 + number * _NUMBERS)
            resident.append(served.resident)
            minute = (number + 1) * minutes / slices
            print(f"| {minute:g} | {resident[-1]:.1f} | {requests:,} | {served.descriptors} |", file=sys.stderr)
    third, end = resident[slices // 3], resident[-1]
    return [
        Row("soak, after its first third", third, "MB"),
        Row("soak, at its end", end, "MB"),
        Row("soak, requests", requests, ""),
        Row(f"soak of {minutes:g} minutes, its end to its first third", end / third, "x", FLAT),
    ]


def _mixed(port: int, seconds: float, first: int) -> int:
    """A slice of the soak; how many requests it had."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(started(job)) for job in _jobs(port, seconds, first)]
        return sum(load_of(job, within=seconds + _SENT_WITHIN).requests for job in jobs)


def _jobs(port: int, seconds: float, first: int) -> Iterator[Job]:
    """New conversations and long-lived ones, with the strategies and kinds of memory of `MIX`."""
    for place, (payload, window, is_new, strategy, memory) in enumerate(MIX):
        headers = f"x-condenser-strategy: {strategy}\r\nx-condenser-memory: {memory}\r\n"
        yield Job(
            port,
            payload,
            streamed=place % 2 == 0,
            cold=is_new,
            connections=1,
            seconds=seconds,
            first=first + place * _NUMBERS // len(MIX),
            window=window,
            named=place % 3 == 0,
            turns=1 if is_new else TURNS,
            headers=headers,
            rough=True,
            rate=RATE,
        )


def verdict(row: Row) -> str:
    """`met` or `missed`; "-" for what is only shown."""
    if row.most is None:
        return "-"
    return "met" if row.figure <= row.most else "missed"


def markdown(rows: Sequence[Row]) -> str:
    most = ["-" if row.most is None else f"{row.most:g} {row.unit}" for row in rows]
    figures = [f"{row.figure:.2f} {row.unit}" for row in rows]
    lines = [[row.what, *cells, verdict(row)] for row, *cells in zip(rows, figures, most, strict=True)]
    return table_of("what | figure | at most | target", lines, texts=(0, -1))
