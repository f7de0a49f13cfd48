"""When to condense and what it may cost: one table, read by the driver as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strategies.core.budget import Budget


class Requirement(Enum):
    """Why a view should be condensed, weakest first."""

    PREPARE = "prepare"
    SOFT = "soft"
    HARD = "hard"
    FORCED = "forced"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Rule:
    """What a requirement allows.

    `asks`: a model may be asked while the client waits. `waits`: the view must have grown by a step since
    the last condensation. `least_shrink`: the share of the view that must go for the result to be used.
    `ladder`: the stages that need no model and always get there are appended.
    """

    asks: bool
    waits: bool
    least_shrink: float
    ladder: bool


RULES = {
    Requirement.PREPARE: Rule(asks=True, waits=True, least_shrink=0.10, ladder=False),
    Requirement.SOFT: Rule(asks=False, waits=True, least_shrink=0.10, ladder=False),
    Requirement.HARD: Rule(asks=True, waits=False, least_shrink=0.0, ladder=True),
    Requirement.FORCED: Rule(asks=True, waits=False, least_shrink=0.0, ladder=True),
    Requirement.OVERFLOW: Rule(asks=True, waits=False, least_shrink=0.0, ladder=True),
}


def required(
    tokens: int, budget: Budget, *, since: int | None, forced: bool = False, due: bool = False
) -> Requirement | None:
    """What a view of `tokens` needs; `since` is its size just after the last condensation, if any.

    `due`: a judged record is ready, or a strategy's own trigger is reached; neither waits for a step.
    """
    if forced:
        return Requirement.FORCED
    if budget.headroom(tokens) < budget.least_headroom:
        return Requirement.HARD
    if due or (tokens >= budget.trigger and is_time(Requirement.SOFT, tokens, budget, since)):
        return Requirement.SOFT
    return None


def is_time(requirement: Requirement, tokens: int, budget: Budget, since: int | None) -> bool:
    """Whether a requirement that waits for a step since the last condensation may be raised, as its rule says.

    One that is prepared for waits at most for half of what was then left until a view must be condensed: where that is
    less than a step, waiting for the step would leave no turn in which to prepare.
    """
    if since is None or not RULES[requirement].waits:
        return True
    if requirement is not Requirement.PREPARE:
        return has_grown(tokens, budget, since)
    left = budget.headroom(since) - budget.least_headroom
    return tokens - since >= min(budget.step, left // 2)


def has_grown(tokens: int, budget: Budget, since: int | None) -> bool:
    """Whether enough has come since the last condensation for another one to be worth a broken cache."""
    return since is None or tokens - since >= budget.step
