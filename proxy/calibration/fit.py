"""Fits prices of what a request is made of to what an upstream has counted. No I/O.

The fit is a ridge regression towards what holds without any knowledge: our own count, and nothing besides. So a few
replies move the prices little, prices that no reply bears on stay as they are, and exact replies of our own tokenizer
keep all of them. An outlier, such as a reply whose template has dropped old reasoning, weighs by its distance, not by
the square of it (Huber). Every price stays within its bounds, whatever was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.calibration.features import Features

EVEN = Features(words=1.0, code=1.0, non_latin=1.0, outside=1.0, media_tokens=1.0)
"""The prices when nothing has been learned: a token is a token."""
LOWEST = Features(0, -2_000, -4, 0.3, 0.3, 0.3, 0.3, 0, 0)
HIGHEST = Features(64_000, 8_000, 24, 4, 4, 4, 4, 20_000, 20)
_SPREAD = Features(3_000, 400, 3, 0.3, 0.3, 0.3, 0.6, 1_000, 1)  # how far a price is from `EVEN`, typically
_PINNED = 1e9  # the weight that holds a price at its bound
_ROUNDS = 4
_FAR = 1.5  # times its noise; an observation that is farther off weighs less


class Observation(NamedTuple):
    """The upstream's count for a request, or for a part of one."""

    features: Features
    counted: int
    """Tokens of the upstream."""
    by: str = ""
    """A digest of the conversation."""
    offering: str = ""
    """A digest of the tools."""
    at: int = 0
    """In seconds since the epoch."""

    @property
    def noise(self) -> float:
        """Tokens by which a good estimate may be off."""
        own = self.features.own
        return 20 + 0.03 * own if self.features.requests else 8 + 0.06 * own


def fit_prices(observations: Sequence[Observation], start: Features = EVEN) -> Features:
    """The prices that fit best. `start` is a guess: it decides how soon they are found, not which."""
    prices = start
    for _ in range(_ROUNDS):
        prices = _solve_within_bounds(*_normal_equations(observations, prices))
    return prices


def bounded(prices: Features) -> Features:
    """The prices within their bounds."""
    return Features(*[min(max(price, low), high) for price, low, high in zip(prices, LOWEST, HIGHEST, strict=True)])


def _solve_within_bounds(matrix: list[list[float]], right: list[float]) -> Features:
    """The solution in which a price that would leave its bounds is held at the bound, and the others make up for it."""
    held: set[int] = set()
    while True:
        prices = Features(*_solve(matrix, right))
        within = bounded(prices)
        out = {i for i in range(len(EVEN)) if prices[i] != within[i]} - held
        if not out:
            return within
        held |= out
        for i in out:
            matrix[i][i] += _PINNED
            right[i] += _PINNED * within[i]


def _normal_equations(observations: Sequence[Observation], prices: Features) -> tuple[list[list[float]], list[float]]:
    """The normal equations, with weights by how far each observation is from these prices."""
    size = range(len(EVEN))
    matrix = [[1 / _SPREAD[i] ** 2 if i == j else 0.0 for j in size] for i in size]
    right = [EVEN[i] / _SPREAD[i] ** 2 for i in size]
    for each in observations:
        weight = _weight(each, prices)
        present = [i for i in size if each.features[i]]
        for i in present:
            weighed = weight * each.features[i]
            right[i] += weighed * each.counted
            row = matrix[i]
            for j in present:
                row[j] += weighed * each.features[j]
    return matrix, right


def _weight(each: Observation, prices: Features) -> float:
    noise = each.noise
    off = abs(each.counted - each.features.at(prices)) / noise
    return (1.0 if off <= _FAR else _FAR / off) / noise**2


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of equations whose matrix is positive definite, by elimination."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            for j in range(i, size + 1):
                row[j] -= factor * rows[i][j]
    found = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - known) / rows[i][i]
    return found
