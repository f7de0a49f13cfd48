"""Fusing: combines the hits by words and the hits by meaning (vectors) into one order, by reciprocal rank.

Word scores and the closeness of vectors have no common scale, but ranks have. Among vectors something is always
nearest, even if nothing is near, so only hits that stand out from all visible entries count as found by meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strategies.memory.ranking import Hit

RANK = 60
"""Added to each rank, so that the first hit of one order is not worth more than a hit that is good in both."""
OUTSTANDING = 2.0
"""How many standard deviations above the mean the closeness of an outstanding entry is."""
MAX_NEAR = 50


def outstanding(closeness: Sequence[tuple[Hit, float]]) -> list[Hit]:
    """The hits that are much closer than the others, closest first; their score is in standard deviations."""
    values = [value for _, value in closeness]
    mean = sum(values) / max(len(values), 1)
    spread = (sum((value - mean) ** 2 for value in values) / max(len(values), 1)) ** 0.5
    if not spread:
        return []
    scored = [replace(hit, score=(value - mean) / spread) for hit, value in closeness]
    scored.sort(key=lambda hit: (-hit.score, -hit.position))
    return [hit for hit in scored[:MAX_NEAR] if hit.score >= OUTSTANDING]


def fuse(worded: Sequence[Hit], near: Sequence[Hit]) -> list[Hit]:
    """Both orders, each best first, as one order, best first.

    The score of a hit becomes its share of the best score, in the order where that share is larger.
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
