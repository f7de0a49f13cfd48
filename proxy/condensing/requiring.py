"""What a decision's view needs: read off the table of requirements, and off what was prepared for it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from proxy.condensing.cost import Moment, Prices, price_of, turns_to_pay_back
from proxy.condensing.decision import Action, Decision
from proxy.reasons import Reason
from proxy.request.intake import Case
from strategies.core.floor import floor
from strategies.core.ready import ready
from strategies.core.replay import Replayed
from strategies.core.requirement import RULES, Requirement, has_grown, required
from strategies.pipeline import due

_GIVES_WAY = (
    "",
    Reason.BELOW_MARKS,
    Reason.WAITING_FOR_STEP,
    Reason.NOT_PREPARED,
    Reason.NO_PROGRESS,
    Reason.NO_ROOM,
    Reason.NOTHING_TO_CONDENSE,
    Reason.NOTHING_TO_DROP,
    Reason.NOTHING_TO_MASK,
    Reason.NOTHING_TO_EXTRACT,
    Reason.NOTHING_TO_SHORTEN,
    Reason.NOTHING_TO_SUMMARIZE,
    Reason.SUMMARY_BOUNDARY,
)
"""Reasons that say only that no more was condensed."""


class Needed(NamedTuple):
    """What a view needs. Where that is nothing, `reason` says why, if there is more to say than was said before."""

    requirement: Requirement | None
    reason: str = ""


def needed(decision: Decision, case: Case) -> Needed:
    """What the view of a decision needs."""
    budget = case.policy.budget
    if budget is None:
        return Needed(None, Reason.WINDOW_UNKNOWN)
    since = decision.applied.tokens_after if decision.applied else None
    tokens = decision.tokens_after
    own = _is_due(decision, case)
    requirement = required(tokens, budget, since=since, forced=case.request.controls.force, due=own)
    if requirement is not None:
        return Needed(requirement)
    if tokens >= budget.trigger and not has_grown(tokens, budget, since):
        return Needed(None, Reason.WAITING_FOR_STEP)
    return Needed(None, _news(case) or (Reason.BELOW_MARKS if decision.action is Action.PASSED else ""))


def _is_due(decision: Decision, case: Case) -> bool:
    """Whether a judge wants it condensed and that is ready, or a stage has a trigger of its own that is reached."""
    budget = case.policy.budget
    if budget is None:
        return False
    judged = ready(decision.view, decision.applied, case.recognised.condensations, budget, judged_only=True)
    return judged is not None or any(due(stage, decision.view, budget) for stage in case.policy.stages)


def what_is_ready(requirement: Requirement, decision: Decision, case: Case) -> Replayed | None:
    """What was prepared and may be taken; under a judge the marks alone take nothing."""
    budget = case.policy.budget
    if budget is None:
        return None
    judged_only = requirement is Requirement.SOFT and case.policy.judging is not None
    return ready(
        decision.view,
        decision.applied,
        case.recognised.condensations,
        budget,
        judged_only=judged_only,
        least_shrink=RULES[requirement].least_shrink,
    )


class Floor(NamedTuple):
    """How many tokens of a view can never go, and the reason to give for what was done."""

    tokens: int
    reason: Reason


def floor_under(decision: Decision) -> Floor | None:
    """The floor of a view, where that keeps it from its target or from fitting at all; None where it does not."""
    budget, view = decision.policy.budget, decision.view
    if budget is None or decision.action is Action.DEGRADED or view.tokens < budget.prepare:
        return None
    least = floor(view, budget)
    if view.tokens > budget.usable:
        return Floor(least, Reason.IRREDUCIBLE)
    if least > budget.target and decision.reason in _GIVES_WAY:
        return Floor(least, Reason.FLOOR)
    return None


def not_ready(case: Case) -> Reason:
    """Why a view at the trigger stays as it is although a model could condense it."""
    return Reason.AWAITING_VERDICT if case.policy.judging else Reason.NOT_PREPARED


def still_required(decision: Decision) -> Requirement | None:
    """What is left to do for a view that has just taken what was ready: only to make it fit."""
    budget = decision.policy.budget
    since = decision.applied.tokens_after if decision.applied else None
    requirement = required(decision.tokens_after, budget, since=since) if budget else None
    return requirement if requirement is Requirement.HARD else None


def waits_to_pay_back(decision: Decision, case: Case, cache_lifetime: float) -> bool:
    """Whether condensing now costs more than it saves soon; with nothing ready, the target is what to expect.

    `cache_lifetime` is for how many seconds the upstream keeps a prompt in its cache.
    """
    prices, budget = case.policy.prices, case.policy.budget
    if prices is None or budget is None:
        return False
    found = what_is_ready(Requirement.SOFT, decision, case)
    idle = case.request.asked_at - case.branch.last_used if case.branch else 0.0
    moment = Moment(
        before=budget.scale.upstream(decision.tokens_after),
        after=budget.scale.upstream(found.view.tokens if found else budget.target),
        fixed=budget.scale.upstream(round(case.prompt.fixed.own)),
        calls=_price(prices, found) if found else 0.0,
        is_cold=idle > cache_lifetime,
    )
    return turns_to_pay_back(prices, moment) > case.policy.payback_turns


def _price(prices: Prices, ready: Replayed) -> float:
    """What the calls for a record cost: its text is what they wrote, the rest is what they read."""
    place, spent = ready.view.replacement, ready.applied.own_tokens if ready.applied else 0
    written = min(ready.view.lead[place].message.tokens, spent) if place is not None else 0
    return price_of(prices, prompt=spent - written, cached=0, completion=written)


def _news(case: Case) -> str:
    """What a person should know of how the conversation was recognised."""
    if case.is_aligned:
        return Reason.ALIGNED
    session = case.recognised.session
    if session is not None and session.branch_of(case.history.digests) is None:
        return Reason.NEW_BRANCH
    return ""
