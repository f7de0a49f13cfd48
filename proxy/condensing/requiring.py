"""Decides which requirement a view raises, and which prepared condensation meets it. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason
from strategies.core.replay import JUDGED, Replayed, best_prepared
from strategies.core.requirement import RULES, Requirement, floor, has_grown, requirement_for
from strategies.pipeline import is_due


class Need(NamedTuple):
    """The requirement that a view raises, if any."""

    requirement: Requirement | None
    reason: str = ""
    """Why there is none, if the decision does not say so already."""


def assess_need(decision: Decision, context: RequestContext) -> Need:
    """The requirement that the view of a decision raises."""
    if context.policy.budget is None:
        return Need(None, Reason.WINDOW_UNKNOWN)
    view, budget, tokens = decision.view, context.budget, decision.tokens_after
    since = decision.applied.tokens_after if decision.applied else None
    judged = best_prepared(view, decision.applied, context.recognised.condensations, budget, judged_only=True)
    due = judged is not None or any(is_due(stage, view, budget) for stage in context.policy.stages)
    requirement = requirement_for(tokens, budget, since=since, forced=context.request.controls.force, due=due)
    if requirement is Requirement.SOFT and context.is_held_back(decision.applied):
        return Need(None, Reason.REVERTED)
    if requirement is not None:
        return Need(requirement)
    if tokens >= budget.trigger and not has_grown(tokens, budget, since):
        return Need(None, Reason.WAITING_FOR_STEP)
    is_below = Reason.BELOW_MARKS if decision.action is Action.PASSED else ""
    return Need(None, context.recognition_reason or why_no_record(decision, context) or is_below)


def find_prepared(requirement: Requirement, decision: Decision, context: RequestContext) -> Replayed | None:
    """The prepared condensation to apply, if there is one; under a judge, SOFT applies a judged one only."""
    return best_prepared(
        decision.view,
        decision.applied,
        context.recognised.condensations,
        context.budget,
        judged_only=requirement is Requirement.SOFT and context.policy.judging is not None,
        least_shrink=RULES[requirement].least_shrink,
    )


def with_floor(decision: Decision) -> Decision:
    """The decision with its floor, if that keeps the view from its target or from fitting."""
    budget, view = decision.policy.budget, decision.view
    if budget is None or decision.action is Action.DEGRADED or view.tokens < budget.prepare:
        return decision
    least = floor(view, budget)
    if view.tokens > budget.usable:
        return decision._replace(reason=Reason.IRREDUCIBLE, floor=least)
    if least > budget.target and decision.reason in NO_MORE_CONDENSED:
        return decision._replace(reason=Reason.FLOOR, floor=least)
    return decision


def why_no_record(decision: Decision, context: RequestContext) -> str:
    """Why the record that judges wanted for this view failed; "" if none did."""
    session = context.recognised.session
    failed = session.failed_try if session else None
    if failed is None or not failed.judged:
        return ""
    is_same = failed.branch == context.branch_name and failed.applied == decision.base.applied_id
    return failed.reason if is_same else ""


def why_not_prepared(decision: Decision, context: RequestContext) -> str:
    """Why a view at the trigger is not condensed although a model could do it."""
    if reason := why_no_record(decision, context):
        return reason
    stage, session = context.policy.judging, context.session_facts(context.request.received_at)
    if stage is None:
        return Reason.NOT_PREPARED
    known = (verdict for verdict in reversed(session.verdicts) if verdict.applies_to(context.history.digests))
    last = next(known, None)
    is_none_due = not (stage.inline or context.policy.prepares) or stage.has_judged_enough(decision.view, session)
    return Reason.NO_VERDICT if is_none_due or (last is not None and last.failure) else Reason.AWAITING_VERDICT


def still_required(decision: Decision, context: RequestContext) -> Requirement | None:
    """The requirement of a view that has just applied a prepared condensation.

    HARD, to make it fit. SOFT, if messages that came after the preparation keep it above its target, and a stage that
    asks no model may help. Else none, as after a judged condensation, which was not made for the view's size.
    """
    tokens, applied, budget = decision.tokens_after, decision.applied, context.budget
    if applied is None:
        return None
    if requirement_for(tokens, budget, since=applied.tokens_after) is Requirement.HARD:
        return Requirement.HARD
    if tokens <= budget.target or applied.trigger == JUDGED or decision.action is Action.DEGRADED:
        return None
    return None if all(stage.asks for stage in context.policy.stages) else Requirement.SOFT
