"""`off`: never changes anything. It is the control arm of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from strategies.core.budget import Budget
from strategies.core.plan import Plan
from strategies.core.protocol import Options, SessionFacts, Steps, Strategy
from strategies.core.view import View


@dataclass(frozen=True, slots=True)
class Off(Strategy):
    options: Options
    name: ClassVar[str] = "off"

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        yield from ()
        return Plan(())
