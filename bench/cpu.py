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
    rounds: int = ROUNDS, stores: Sequence[str] = STORES[:2], only: str = "", protocols: Sequence[str] = ("chat",)
) -> list[dict[str, Any]]:
    """A row for each kind of request; about three minutes for each protocol."""
    rows = []
    with targets(stores) as found:
        del found[DIRECT]
        for name, kind in KINDS.items():
            if only not in name or (kind.cold and not only):
                continue
            for protocol in protocols:
                told = name if protocol == "chat" else f"{name}, {protocol}"
                rows.append(row(told, _least(replace(kind, protocol=protocol), found, rounds)))
    return rows


def _least(kind: Job, found: Mapping[str, Served], rounds: int) -> dict[str, float]:
    """Milliseconds that each target computes for a request."""

    def taken(name: str, least: int = REQUESTS[kind.payload] // CONNECTIONS) -> float:
        before = found[name].cpu
        done = sent(job_for(kind, found[name].port, CONNECTIONS, 0.0, least))
        return (found[name].cpu - before) * 1_000 / len(done.completes)

    for name in found:
        taken(name, 2)  # the first ones are not warm
    return {name: min(times) for name, times in in_turn(list(found), rounds, taken).items()}


def row(kind: str, least: Mapping[str, float]) -> dict[str, Any]:
    """The least times, and those of the others to ours."""
    others, ours = [name for name in least if name not in STORES], [name for name in least if name in STORES]
    ratios = {f"{other} / {name}": least[other] / least[name] for other in others for name in ours}
    return {"CPU ms a request": kind, **least, **ratios}
