"""The floor: what no condensation can take out of a view, and whether asking a model can lead anywhere above it.

Tools, framing and system messages, the first and the last user message, and the newest round stay whatever is done;
only the results of the newest round may still be cut. Where that alone is near to the window, a summary costs a call
and makes no room.
"""

from __future__ import annotations

from strategies.core.budget import Budget
from strategies.core.replacement import frame_tokens
from strategies.core.requirement import RULES, Requirement
from strategies.core.summary import LEAST_RECORD
from strategies.core.transcript import Role
from strategies.core.view import Item, View

LEAST_RESULT = 180
"""Tokens that are left of a result that was cut, with its frame."""


def floor(view: View, budget: Budget) -> int:
    """Tokens of a view that stay whatever is condensed, without a record for what went."""
    items, limit = view.items, view.limit
    tokens = view.fixed + sum(_least(each) for each in items[limit:])
    if view.task is not None and view.task < limit:
        tokens += min(items[view.task].message.tokens, budget.task_cap)
    if view.last_user is not None and view.last_user < limit and view.last_user != view.task:
        tokens += items[view.last_user].message.tokens
    return tokens


def can_help(requirement: Requirement, view: View, budget: Budget) -> bool:
    """Whether a record of the least size would bring a view to where the requirement wants it: to fit, or to be smaller
    by as much as its rule says. What was wished for is tried."""
    least = floor(view, budget) + frame_tokens(view.counter) + LEAST_RECORD
    match requirement:
        case Requirement.HARD | Requirement.OVERFLOW:
            return least <= budget.usable
        case Requirement.PREPARE:
            return view.tokens - least >= RULES[requirement].least_shrink * view.tokens
    return True


def _least(item: Item) -> int:
    tokens = item.message.tokens
    return min(tokens, LEAST_RESULT) if item.role is Role.TOOL else tokens
