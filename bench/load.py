"""The proxy under load: throughput and latency beside no proxy, a naive one, and peers.

An upstream stub and a load generator run on the last core, each proxy on the first one, all of them up at once. For
each kind of request every target is measured in turn, round by round, so that what the machine does beside it hits all
of them alike; what is shown are medians over the rounds.

Throughput is that of 16 connections, latency that of one. `bench/README.md` explains the states of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from statistics import median
from typing import Any, TypeVar

from bench.processes import DIRECT, STORES, Served, targets
from bench.traffic import Job, Load, sent

CONNECTIONS = 16
ROUNDS = 3
SECONDS = 1.5
REPLAYED_WINDOW = 96_000
"""A window that the large payload outgrows: it is condensed once, and that is replayed."""
TURNS = 20
"""Requests of a conversation that goes on, before the next one begins."""
STATES: Mapping[str, Mapping[str, Any]] = {
    "warm": {},
    "going on": {"turns": TURNS},
    "named": {"named": True},
    "cold": {"cold": True},
    "replay": {"window": REPLAYED_WINDOW},
}
KINDS = {
    f"{payload}, {'streamed' if streamed else 'plain'}, {state}": Job(payload, streamed, **parts)
    for payload in ("small", "medium", "large")
    for streamed in (False, True)
    for state, parts in STATES.items()
    # How a reply comes has nothing to do with what a history costs.
    if state == "warm" or (not streamed and (state == "cold" or payload == "large"))
}
"""Every kind of request that is measured, without an address."""
_NUMBERS = count(1, 100_000)
"""Where jobs begin to number their requests, so that no two of a thousand have any in common."""

T = TypeVar("T")


def measure(
    rounds: int = ROUNDS, seconds: float = SECONDS, stores: Sequence[str] = STORES, only: str = ""
) -> list[dict[str, Any]]:
    """A row for each target and kind of request; about ten minutes for all targets."""
    with targets(stores) as found:
        return [row for kind in KINDS if only in kind for row in _rows(kind, found, rounds, seconds)]


def _rows(kind: str, found: Mapping[str, Served], rounds: int, seconds: float) -> list[dict[str, Any]]:
    def once(name: str) -> tuple[Load, Load]:
        many, one = (job_for(KINDS[kind], found[name].port, each, seconds, 2) for each in (CONNECTIONS, 1))
        return sent(many), sent(one)

    for target in found.values():
        sent(job_for(KINDS[kind], target.port, CONNECTIONS, 0.2, 2))
    return rows(kind, in_turn(list(found), rounds, once))


def rows(kind: str, measured: Mapping[str, Sequence[tuple[Load, Load]]]) -> list[dict[str, Any]]:
    """Requests a second, and milliseconds until a reply is complete and until its body begins: medians."""
    rates = {name: median(len(many.completes) / many.seconds for many, _ in loads) for name, loads in measured.items()}
    wholes = {name: median(median(one.completes) for _, one in loads) * 1_000 for name, loads in measured.items()}
    firsts = {name: median(median(one.first_bytes) for _, one in loads) * 1_000 for name, loads in measured.items()}
    others = [name for name in measured if name not in (DIRECT, *STORES)]
    return [
        {
            "request": kind,
            "target": name,
            "a second": rates[name],
            **{f"x {other}": rates[name] / rates[other] for other in others},
            "ms": wholes[name],
            "added": wholes[name] - wholes[DIRECT],
            "ms to first byte": firsts[name],
            "added to it": firsts[name] - firsts[DIRECT],
        }
        for name in measured
    ]


def in_turn(names: Sequence[str], rounds: int, once: Callable[[str], T]) -> dict[str, list[T]]:
    """What `once` measures of each target, round by round; the order of the targets moves on with the rounds."""
    measured: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            measured[name].append(once(name))
    return measured


def job_for(kind: Job, port: int, connections: int, seconds: float, least: int) -> Job:
    """A job for a kind of request; no two jobs have a request in common."""
    first = next(_NUMBERS) % 100_000_000
    return replace(kind, port=port, connections=connections, seconds=seconds, least=least, first=first)
