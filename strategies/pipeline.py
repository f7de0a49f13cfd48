"""The pipeline: stages run one after the other, each only while the goal is not met.

Each stage plans on the view that the stages before it have left. A stage that declines or fails leaves the view as
it is and its reason in the notes. The result is one view and so one record, whichever stages took part. `attempt`
reads the requirement's rule: which stages may run, and how much must go for the result to be used at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.effects import Effect, Result
from strategies.core.errors import Declined, InvalidPlan, StrategyError
from strategies.core.floor import can_help
from strategies.core.plan import apply, check, newest_is_shortened
from strategies.core.protocol import Judging, Marking, Past, Strategy, Triggering
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import View

_IDLE = ("nothing-", "no-progress")


@dataclass(slots=True)
class Outcome:
    """The view that a pipeline leads to; `stages` that changed it, why others did not, what they say.

    `cards` are what summarizers thought worth remembering. `defects` are exceptions that no strategy may raise; whoever
    runs the pipeline should tell somebody.
    """

    view: View
    stages: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    cards: list[MemoryCard] = field(default_factory=list)
    defects: list[Exception] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why the stage that failed first did, or ""."""
        return next(iter(self.reasons.values()), "")

    @property
    def failure(self) -> str:
        """Why a stage failed, where one did; that a stage had nothing to do is no failure. "" for none."""
        return next((each for each in self.reasons.values() if not each.startswith(_IDLE)), "")


Run = Generator[tuple[Effect, ...], tuple[Result, ...], Outcome]


def attempt(
    requirement: Requirement,
    stages: Sequence[Strategy],
    ladder: Sequence[Strategy],
    view: View,
    budget: Budget,
    past: Past,
) -> Run:
    """The outcome of the stages that the requirement allows; raises `Declined` where it may not be used."""
    rule = RULES[requirement]
    # What a judge wants condensed is wanted for another reason than its tokens.
    asks = rule.asks and (past.verdict is not None or can_help(requirement, view, budget))
    allowed = [stage for stage in stages if asks or not stage.asks]
    if requirement is Requirement.PREPARE:
        allowed.sort(key=lambda stage: stage.asks)
    aim = budget.aiming(goal(requirement, view, budget))
    outcome = yield from run(allowed, ladder if rule.ladder else (), view, aim, past)
    if not outcome.stages and outcome.defects:
        raise outcome.defects[0]
    if not outcome.stages:
        raise Declined(outcome.reason or "nothing-to-condense")
    shrink = view.tokens - outcome.view.tokens
    if shrink < rule.least_shrink * view.tokens:
        raise Declined("no-progress", f"{shrink} of {view.tokens} tokens")
    return outcome


def goal(requirement: Requirement, view: View, budget: Budget) -> int:
    """Tokens to aim at: the target, for a preparation as it will stand when the view has grown to the trigger.

    What is prepared below the mark is not wanted for its tokens: then the target is enough.
    """
    if requirement is Requirement.PREPARE and view.tokens >= budget.prepare:
        return max(budget.target - max(budget.trigger - view.tokens, 0), 1)
    return budget.target


def marked(budget: Budget, stages: Iterable[Strategy]) -> Budget:
    """The budget with the marks of the first stage that has its own; with the settings' where none has."""
    own = next((stage.marks(budget) for stage in stages if isinstance(stage, Marking)), None)
    return budget if own is None else budget.marked(own)


def due(stage: Strategy, view: View, budget: Budget) -> bool:
    """Whether a stage has a trigger of its own that the view has reached."""
    return isinstance(stage, Triggering) and stage.due(view, budget)


def _goes_on(stage: Strategy, view: View, budget: Budget, past: Past) -> bool:
    """Whether a stage has work to do although the view meets its goal: its own trigger, or a verdict."""
    return due(stage, view, budget) or (past.verdict is not None and isinstance(stage, Judging))


def run(stages: Sequence[Strategy], ladder: Sequence[Strategy], view: View, budget: Budget, past: Past) -> Run:
    """Runs stages until the view has `budget.goal` tokens; yields what they yield.

    The stages of the ladder aim at the goal too, but only run while the view is at or above the trigger: a good
    summary is not thrown away for the last few tokens.
    """
    outcome = Outcome(view)
    for stage, enough in [*((s, budget.goal) for s in stages), *((s, budget.trigger - 1) for s in ladder)]:
        is_enough = outcome.view.tokens <= enough and (outcome.stages or stage in ladder)
        if is_enough and not _goes_on(stage, outcome.view, budget, past):
            continue
        try:
            plan = yield from stage.condense(outcome.view, budget, past)
            after = apply(outcome.view, plan)
            check(after, newest_results_too=stage.name == "shorten" or newest_is_shortened(outcome.view))
        except InvalidPlan as error:
            outcome.reasons[stage.name] = error.reason
            outcome.metadata[stage.name] = {"invalidPlan": error.detail}
            continue
        except StrategyError as error:
            outcome.reasons[stage.name] = error.reason
            continue
        except Exception as defect:  # noqa: BLE001
            # A defect in one stage costs what it would have saved; the next one may still make room.
            outcome.reasons[stage.name] = "internal-error"
            outcome.defects.append(defect)
            continue
        if after.tokens >= outcome.view.tokens:
            outcome.reasons[stage.name] = "no-progress"
            continue
        outcome.view = after
        outcome.stages.append(stage.name)
        outcome.cards.extend(plan.cards)
        outcome.metadata[stage.name] = dict(plan.metadata)
        if plan.reason:
            outcome.reasons[stage.name] = plan.reason
    return outcome
