"""Fusing: what was found by its words and what was found by its meaning become one order, by reciprocal rank.

Scores of words and closeness of vectors have no common scale, ranks do. But of vectors something is always nearest,
also where nothing is near: so only what stands out from all that may be seen counts as found by its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strategies.memory.ranking import Hit

RANK = 60
"""Added to each rank, so that the first of one order is not worth more than what stands well in both."""
OUTSTANDING = 2.0
"""Standard deviations by which the closeness of a passage is above the mean of all."""
MOST_NEAR = 50


def outstanding(closeness: Sequence[tuple[Hit, float]]) -> list[Hit]:
    """Those that are closer than the rest, closest first; their score says by how many standard deviations."""
    values = [value for _, value in closeness]
    mean = sum(values) / max(len(values), 1)
    spread = (sum((value - mean) ** 2 for value in values) / max(len(values), 1)) ** 0.5
    if not spread:
        return []
    found = [replace(hit, score=(value - mean) / spread) for hit, value in closeness]
    found.sort(key=lambda hit: (-hit.score, -hit.position))
    return [hit for hit in found[:MOST_NEAR] if hit.score >= OUTSTANDING]


def fused(worded: Sequence[Hit], near: Sequence[Hit]) -> list[Hit]:
    """Both orders as one, best first; each of them is best first too.

    A score is then the larger of the shares that a hit has of the best score in each order.
    """
    worth: dict[tuple[str, int], float] = {}
    hits: dict[tuple[str, int], Hit] = {}
    for order in (worded, near):
        best = max((hit.score for hit in order), default=1.0)
        for rank, hit in enumerate(order, 1):
            key = hit.entry.key, hit.entry.part
            share = max(hit.score / best, hits[key].score if key in hits else 0.0)
            worth[key] = worth.get(key, 0.0) + 1 / (RANK + rank)
            hits[key] = replace(hit, score=share)
    return sorted(hits.values(), key=lambda hit: (-worth[hit.entry.key, hit.entry.part], -hit.position))
