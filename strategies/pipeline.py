"""The pipeline: runs the stages one after the other, each only while the goal is not met.

Each stage plans on the view that the stages before it have left. A stage that declines or fails leaves the view
unchanged, and `Outcome.reasons` says why. The result is one view, recorded as one condensation, whichever stages took
part. `run_required` applies the requirement's rule (`requirement.RULES`): which stages may run, and by how much the
view must shrink for the result to be used. `run` drives the stages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.economics import cheapest_target
from strategies.core.effects import Effect, Result
from strategies.core.errors import Declined, NothingToDo, StrategyError
from strategies.core.findings import newest_of_files
from strategies.core.messages import Role
from strategies.core.plan import apply, check, newest_is_shortened, with_wider_task
from strategies.core.protocol import Judging, Marking, SessionFacts, Strategy, Triggering
from strategies.core.requirement import RULES, Requirement, can_help, condensable, floor, is_by_choice, spared
from strategies.core.view import View


@dataclass(slots=True)
class Outcome:
    view: View
    stages: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """By stage name, why a stage changed nothing or achieved less than it wanted, as a kebab-case word."""
    idle: set[str] = field(default_factory=set)
    """The stages in `reasons` that had nothing to do or made no progress, which is no failure."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """By stage name, the metadata of its plan or of its failure, such as `invalidPlan` if the plan was refused."""
    cards: list[MemoryCard] = field(default_factory=list)
    defects: list[Exception] = field(default_factory=list)
    """Exceptions that no strategy may raise. The caller should report them."""

    @property
    def reason(self) -> str:
        return next(iter(self.reasons.values()), "")

    @property
    def failure(self) -> str:
        """The reason of the first stage that failed, or "". A stage that had nothing to do has not failed."""
        return next((reason for stage, reason in self.reasons.items() if stage not in self.idle), "")

    def note(self, stage: Strategy, reason: str, *, is_idle: bool = False) -> None:
        """Records the reason of a stage, in place of an earlier one of the same name."""
        self.reasons[stage.name] = reason
        (self.idle.add if is_idle else self.idle.discard)(stage.name)


Run = Generator[tuple[Effect, ...], tuple[Result, ...], Outcome]
Step = Generator[tuple[Effect, ...], tuple[Result, ...], None]


def run_required(
    requirement: Requirement,
    stages: Sequence[Strategy],
    ladder: Sequence[Strategy],
    view: View,
    budget: Budget,
    session: SessionFacts,
) -> Run:
    """Runs the stages that the requirement allows; raises `Declined` if the result may not be used."""
    rule = RULES[requirement]
    # A judge's reason for a condensation is not the view's size, so the floor does not matter then.
    asks = rule.asks and (session.verdict is not None or can_help(requirement, view, budget))
    allowed = [stage for stage in stages if asks or not stage.asks]
    if requirement is Requirement.PREPARE:
        # A rule that rewrites what a vendor's compaction would keep costs the reasoning in it.
        allowed.sort(key=lambda stage: stage.asks and not stage.reads_opaque)
    # A vendor's compaction keeps users' messages by itself, and a judge's reason is not the view's size. Without `most`
    # or a step there is no choice.
    is_for_size = rule.least_shrink and session.verdict is None and (budget.share_trigger or budget.step_at)
    if is_for_size and is_by_choice(view, budget) and not any(stage.reads_opaque for stage in allowed):
        view = spared(view)
        budget = cheapest(view, budget)
    aim = budget.with_goal(goal(requirement, view, budget))
    outcome = yield from run(allowed, ladder if rule.ladder else (), view, aim, session)
    if not outcome.stages and outcome.defects:
        raise outcome.defects[0]
    if not outcome.stages:
        # FORCED tries every stage, so the reason of a single idle stage would not explain the result.
        idle = "" if requirement is Requirement.FORCED else outcome.reason
        raise Declined(outcome.failure or idle or "nothing-to-condense")
    has_asked = any(stage.asks and stage.name in outcome.stages for stage in allowed)
    size, shrink = outcome.view.tokens, view.tokens - outcome.view.tokens
    if rule.least_room and not has_asked and size > aim.goal:
        # What is spared may be above `most` by itself; the next condensation then waits for a step all the same.
        mark = inf if is_by_choice(view, budget) and size >= aim.trigger else aim.trigger
        buys_room = min(view.tokens, mark) - size >= rule.least_room * growth(view)
    else:
        buys_room = True
    if shrink < rule.least_shrink * view.tokens or not buys_room:
        raise Declined("no-progress", f"{shrink} of {view.tokens} tokens")
    return outcome


def growth(view: View) -> int:
    """The average number of tokens that a request of this transcript has added."""
    chain = view.transcript.chain
    replies = sum(message.role is Role.ASSISTANT for message in chain)
    return sum(message.tokens for message in chain) // max(replies, 1)


def cheapest(view: View, budget: Budget) -> Budget:
    """The budget with the target at which the next requests cost least, because a cut by choice saves only money."""
    files = newest_of_files([item.message for item in view.items if item.intact])
    target = cheapest_target(budget, floor(view, budget), growth(view), files)
    return budget.with_marks(replace(budget.marks, target=target / max(budget.usable, 1)))


def goal(requirement: Requirement, view: View, budget: Budget) -> int:
    """The tokens to aim at, in most cases `target`.

    A preparation aims lower: the view should be at `target` when it has grown to the trigger. Below the `prepare` mark,
    a judge has asked for the preparation, and it aims at `target` itself. If a client forces a condensation of a view
    that is already at `target`, half of what may be condensed should go.
    """
    if requirement is Requirement.FORCED and view.tokens <= budget.target:
        return view.tokens - max(condensable(view) // 2, 1)
    if requirement is Requirement.PREPARE and view.tokens >= budget.prepare:
        return max(budget.target - max(budget.trigger - view.tokens, 0), 1)
    return budget.target


def with_stage_marks(budget: Budget, stages: Iterable[Strategy]) -> Budget:
    """The budget with the marks of the first stage that has its own; unchanged if none has."""
    own = next((stage.marks(budget) for stage in stages if isinstance(stage, Marking)), None)
    return budget if own is None else budget.with_marks(own)


def is_due(stage: Strategy, view: View, budget: Budget) -> bool:
    """Whether a stage has a trigger of its own and the view has reached it."""
    return isinstance(stage, Triggering) and stage.is_due(view, budget)


def run(
    stages: Sequence[Strategy], ladder: Sequence[Strategy], view: View, budget: Budget, session: SessionFacts
) -> Run:
    """Runs stages until the view is at or below `budget.goal`; yields the effects that they yield.

    The stages of the ladder plan for the same goal, but run only while the view is at or above the trigger or no stage
    has changed it: a good summary is not thrown away for the last few tokens. If the view still does not fit, they run
    once more, and may then remove what the client has put before its question. If room is left, a first user message
    that was cut gets it.
    """
    outcome = Outcome(view)
    yield from _run_stages(stages, budget.goal, outcome, budget, session)
    yield from _run_stages(ladder, budget.trigger - 1, outcome, budget, session)
    if ladder and outcome.view.tokens > budget.fits and outcome.view.transcript.newest_turn:
        outcome.view = replace(outcome.view, transcript=outcome.view.transcript.having(newest_turn=0))
        yield from _run_stages(ladder, budget.fits, outcome, budget, session)
    wider = with_wider_task(outcome.view, budget.task_ceiling, budget.goal)
    if wider.tokens < view.tokens:
        outcome.view = wider
    return outcome


def _run_stages(
    stages: Iterable[Strategy], enough: int, outcome: Outcome, budget: Budget, session: SessionFacts
) -> Step:
    """Runs stages while the view has more than `enough` tokens or no stage has changed it yet.

    A stage whose own trigger is reached, or that has a verdict to follow, always runs. One that would undo an opaque
    head which was just made runs only if the view must still become smaller.
    """
    for stage in stages:
        is_new = bool(outcome.stages) and outcome.view.is_opaque and not stage.reads_opaque
        is_enough = outcome.stages and outcome.view.tokens <= (max(enough, budget.trigger - 1) if is_new else enough)
        is_judged = session.verdict is not None and isinstance(stage, Judging)
        if not is_enough or is_judged or is_due(stage, outcome.view, budget):
            yield from _run_stage(stage, outcome, budget, session)


def _run_stage(stage: Strategy, outcome: Outcome, budget: Budget, session: SessionFacts) -> Step:
    try:
        view = outcome.view if stage.reads_opaque else outcome.view.without_opaque
        facts = session if stage.continues else replace(session, continue_view=False)
        plan = yield from stage.condense(view, budget, facts)
        after = apply(view, plan) if plan.after is None else plan.after
        may_cut = stage.may_cut_newest_results or newest_is_shortened(view)
        check(after, may_cut_newest_results=may_cut)
    except StrategyError as error:
        outcome.note(stage, error.reason, is_idle=isinstance(error, NothingToDo))
        if error.metadata:
            outcome.metadata[stage.name] = error.metadata
    except Exception as defect:  # noqa: BLE001
        # A defect in one stage costs what that stage would have saved; the next one may still make room.
        outcome.note(stage, "internal-error")
        outcome.defects.append(defect)
    else:
        if after.tokens >= outcome.view.tokens:
            outcome.note(stage, "no-progress", is_idle=True)
            return
        outcome.view = after
        outcome.stages.append(stage.name)
        outcome.cards.extend(plan.cards)
        outcome.metadata[stage.name] = dict(plan.metadata)
        if plan.reason:
            outcome.note(stage, plan.reason)
