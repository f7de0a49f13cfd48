"""Decides which requirement a view raises, and which prepared condensation meets it. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason
from strategies.core.economics import Condensing, Prices, turns_to_pay_back
from strategies.core.replay import JUDGED, Replayed, best_prepared
from strategies.core.requirement import RULES, Requirement, floor, has_grown, requirement_for
from strategies.pipeline import is_due


class Need(NamedTuple):
    """The requirement that a view raises, if any."""

    requirement: Requirement | None
    reason: str = ""
    """Why there is none, if there is more to say than the decision says already."""


def assess_need(decision: Decision, context: RequestContext) -> Need:
    """The requirement that the view of a decision raises."""
    budget = context.policy.budget
    if budget is None:
        return Need(None, Reason.WINDOW_UNKNOWN)
    since = decision.applied.tokens_after if decision.applied else None
    tokens = decision.tokens_after
    own = _has_own_trigger(decision, context)
    forced = context.request.controls.force or context.wish is not None
    requirement = requirement_for(tokens, budget, since=since, forced=forced, due=own)
    if requirement is Requirement.SOFT and context.is_held_back(decision.applied):
        return Need(None, Reason.REVERTED)
    if requirement is not None:
        return Need(requirement)
    if tokens >= budget.trigger and not has_grown(tokens, budget, since):
        return Need(None, Reason.WAITING_FOR_STEP)
    return Need(
        None,
        context.news
        or why_no_record(decision, context)
        or (Reason.BELOW_MARKS if decision.action is Action.PASSED else ""),
    )


def _has_own_trigger(decision: Decision, context: RequestContext) -> bool:
    """Whether a judged condensation is ready, or a stage's own trigger is reached."""
    budget = context.policy.budget
    if budget is None:
        return False
    judged = best_prepared(decision.view, decision.applied, context.recognised.condensations, budget, judged_only=True)
    return judged is not None or any(is_due(stage, decision.view, budget) for stage in context.policy.stages)


def find_prepared(requirement: Requirement, decision: Decision, context: RequestContext) -> Replayed | None:
    """The prepared condensation to apply, if there is one; under a judge, SOFT applies a judged one only."""
    budget = context.policy.budget
    if budget is None:
        return None
    judged_only = requirement is Requirement.SOFT and context.policy.judging is not None
    return best_prepared(
        decision.view,
        decision.applied,
        context.recognised.condensations,
        budget,
        judged_only=judged_only,
        least_shrink=RULES[requirement].least_shrink,
    )


class Floor(NamedTuple):
    """The part of a view that no condensation can take away, and the reason to report."""

    tokens: int
    """Tokens of that part."""
    reason: Reason


def floor_under(decision: Decision) -> Floor | None:
    """The floor of a view, if it keeps the view from its target or from fitting; else None."""
    budget, view = decision.policy.budget, decision.view
    if budget is None or decision.action is Action.DEGRADED or view.tokens < budget.prepare:
        return None
    least = floor(view, budget)
    if view.tokens > budget.usable:
        return Floor(least, Reason.IRREDUCIBLE)
    if least > budget.target and decision.reason in NO_MORE_CONDENSED:
        return Floor(least, Reason.FLOOR)
    return None


def why_no_record(decision: Decision, context: RequestContext) -> str:
    """Why the record that judges wanted for this view failed; "" if none did."""
    session = context.recognised.session
    failed = session.failed_try if session else None
    if failed is None or not failed.judged or session is None:
        return ""
    same = failed.branch == session.name_for(context.branch, has_tools=context.has_tools)
    return failed.reason if same and failed.applied == (decision.applied.id if decision.applied else "") else ""


def why_not_prepared(decision: Decision, context: RequestContext) -> str:
    """Why a view at the trigger stays as it is although a model could condense it."""
    if reason := why_no_record(decision, context):
        return reason
    return Reason.AWAITING_VERDICT if context.policy.judging else Reason.NOT_PREPARED


def still_required(decision: Decision) -> Requirement | None:
    """The requirement of a view that has just applied a prepared condensation.

    HARD, to make it fit; SOFT, where messages that have come since the preparation keep it above its target and a stage
    that asks no model may help; else none. A judged condensation was not made for the view's size.
    """
    budget, applied = decision.policy.budget, decision.applied
    if budget is None or applied is None:
        return None
    if requirement_for(decision.tokens_after, budget, since=applied.tokens_after) is Requirement.HARD:
        return Requirement.HARD
    if decision.tokens_after <= budget.target or applied.trigger == JUDGED or decision.action is Action.DEGRADED:
        return None
    return None if all(stage.asks for stage in decision.policy.stages) else Requirement.SOFT


def waits_to_pay_back(decision: Decision, context: RequestContext, cache_lifetime: float) -> bool:
    """Whether condensing now would cost more than it saves within `payback_turns`.

    If no condensation is ready, a view at the target is expected. `cache_lifetime` is in seconds: for that long the
    upstream is taken to keep a prompt in its cache.
    """
    prices, budget = context.policy.prices, context.policy.budget
    # Where the trigger is the cheapest one, the cost of condensing has been weighed already.
    if prices is None or budget is None or context.policy.economy == "auto":
        return False
    found = find_prepared(Requirement.SOFT, decision, context)
    idle = context.request.received_at - context.branch.last_used if context.branch else 0.0
    condensing = Condensing(
        landing=budget.scale.upstream(found.view.tokens if found else budget.target),
        head=budget.scale.upstream(round(context.prompt.fixed.own)),
        calls=_price(prices, found) if found else 0.0,
    )
    before, is_cold = budget.scale.upstream(decision.tokens_after), idle > cache_lifetime
    return turns_to_pay_back(condensing, before, prices, is_cold=is_cold) > context.policy.payback_turns


def _price(prices: Prices, ready: Replayed) -> float:
    """The price of a record's model calls: its text counts as what they wrote, the rest as what they read."""
    place, spent = ready.view.replacement, ready.applied.own_tokens if ready.applied else 0
    written = min(ready.view.lead[place].message.tokens, spent) if place is not None else 0
    return prices.of_call(prompt=spent - written, reply=written)
