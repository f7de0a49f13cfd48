"""Shares of questions whose whole evidence reaches the model, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eval.arms import Arm, cases_of
from eval.dialogues import SHARES, Dialogue
from strategies.core.messages import TokenCounter

Z = 1.96


class Cell(NamedTuple):
    """Where a figure belongs: an arm, a language, and one part in how many the view has of the dialogue."""

    arm: str
    language: str
    share: int


class Figure(NamedTuple):
    """So many of all questions."""

    reached: int
    asked: int

    @property
    def percent(self) -> float:
        return 100 * self.reached / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %, in percent, as if questions were independent."""
        share, n = self.reached / self.asked, self.asked
        centre = share + Z * Z / (2 * n)
        spread = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
        low, high = ((centre + sign * spread) / (1 + Z * Z / n) for sign in (-1, 1))
        return 100 * max(low, 0.0), 100 * min(high, 1.0)


def tally(found: Iterable[tuple[Cell, bool]]) -> dict[Cell, Figure]:
    """The figure of each cell from the outcomes of its questions."""
    outcomes = list(found)
    asked = Counter(cell for cell, _ in outcomes)
    reached = Counter(cell for cell, reaches in outcomes if reaches)
    return {cell: Figure(reached[cell], number) for cell, number in asked.items()}


def measured(
    dialogues: Iterable[Dialogue], arms: Mapping[str, Arm], counter: TokenCounter, shares: Sequence[int] = SHARES
) -> dict[Cell, Figure]:
    """The figure of each arm in each language, for each size of the view."""
    return tally(
        (Cell(name, dialogue.language, share), evidence <= arm(case))
        for dialogue in dialogues
        for share, evidence, case in cases_of(dialogue, counter, shares)
        for name, arm in arms.items()
    )
