"""Processor time for each request: that of a proxy's process beside others, on a machine that does other work too.

Throughput and latency say little where others use the same cores; what a process has computed for a request says more.
For each kind of request every target is sent the same number of them, round by round in turn, and the least of the
rounds counts: other work only ever adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.load import CONNECTIONS, KINDS, in_turn, job_for
from bench.processes import DIRECT, STORES, Served, targets
from bench.traffic import Job, sent

ROUNDS = 5
REQUESTS = {"small": 1_200, "medium": 800, "large": 320}
"""So many take about a second of the naive proxy."""


def measure(
    rounds: int = ROUNDS,
    stores: Sequence[str] = STORES[:2],
    only: str = "",
    connections: int = CONNECTIONS,
    peers: Sequence[str] = (),
    requests: int | None = None,
    protocols: Sequence[str] = ("chat",),
) -> list[dict[str, Any]]:
    """A row for each kind; about three minutes for each protocol. Each round has `requests`, by default `REQUESTS`."""
    rows = []
    with targets(stores, peers) as found:
        del found[DIRECT]
        for name, kind in KINDS.items():
            if only not in name or (kind.cold and not only):
                continue
            each = max((requests or REQUESTS[kind.payload]) // connections, 1)
            for protocol in protocols:
                told = name if protocol == "chat" else f"{name}, {protocol}"
                rows.append(row(told, _least(replace(kind, protocol=protocol), found, rounds, connections, each)))
    return rows


def _least(kind: Job, found: Mapping[str, Served], rounds: int, connections: int, each: int) -> dict[str, float]:
    """Milliseconds that each target computes for a request; every connection sends `each` requests a round."""

    def taken(name: str, least: int = each) -> float:
        before = found[name].cpu
        done = sent(job_for(kind, found[name].port, connections, 0.0, least))
        return (found[name].cpu - before) * 1_000 / len(done.completes)

    for name in found:
        taken(name, 2)  # the first ones are not warm
    return {name: min(times) for name, times in in_turn(list(found), rounds, taken).items()}


def row(kind: str, least: Mapping[str, float]) -> dict[str, Any]:
    """The least times, and those of the others to ours."""
    ratios = {
        f"{other} / {name}": least[other] / least[name]
        for other in least
        if other not in STORES
        for name in least
        if name in STORES
    }
    return {"CPU ms a request": kind, **least, **ratios}
