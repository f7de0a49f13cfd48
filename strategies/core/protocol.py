"""What a strategy is."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar, Protocol

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.effects import Effect, Result
from strategies.core.plan import Plan
from strategies.core.view import View

Steps = Generator[tuple[Effect, ...], tuple[Result, ...], Plan]


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of the session: the time in seconds since the epoch, and what was condensed before."""

    now: float = 0.0
    condensations: tuple[Condensation, ...] = ()


class Strategy(Protocol):
    """Plans what to do with a view. Pure: the same arguments and results give the same plan.

    `asks` says whether `condense` may yield effects; one that never does is run where nobody may wait.
    `options` is the frozen dataclass of its options.
    """

    name: ClassVar[str]
    asks: ClassVar[bool]

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """Yields effects, is sent their results, and returns a plan; raises `StrategyError` for none."""
        ...
