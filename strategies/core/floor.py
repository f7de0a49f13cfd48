"""The floor: the tokens that no condensation can remove from a view, and whether asking a model can help at all.

Tools, framing and system messages, the first user message, the question, and the newest round always stay; only the
results of the newest round may still be cut. If these alone nearly fill the window, a summary would cost a call and
make no room.
"""

from __future__ import annotations

from strategies.core.budget import Budget
from strategies.core.messages import Role
from strategies.core.replacement import frame_tokens
from strategies.core.requirement import RULES, Requirement
from strategies.core.summary import MIN_RECORD
from strategies.core.view import Item, View

MIN_RESULT = 180
"""Tokens of a result that was cut as far as it may be, with its frame."""


def floor(view: View, budget: Budget) -> int:
    """The tokens of a view that always stay, not counting a record of what was condensed."""
    items, limit = view.items, view.limit
    tokens = view.fixed + sum(_least(each) for each in items[limit:])
    if view.task is not None and view.task < limit:
        task = items[view.task].message.tokens
        tokens += task if view.task == view.last_user else min(task, budget.task_cap)
    return tokens + sum(items[i].message.tokens for i in view.question if i < limit and i != view.task)


def condensable(view: View) -> int:
    """The tokens of a view that some strategy may condense; an earlier replacement does not count."""
    kept = {view.task, view.replacement, *view.question}
    return sum(item.message.tokens for i, item in enumerate(view.items[: view.limit]) if i not in kept)


def can_help(requirement: Requirement, view: View, budget: Budget) -> bool:
    """Whether even a record of the least size would bring a view to where the requirement wants it.

    For HARD and OVERFLOW the view must then fit, for PREPARE shrink by the rule's share. FORCED is always tried.
    """
    least = floor(view, budget) + frame_tokens(view.counter) + MIN_RECORD
    match requirement:
        case Requirement.HARD | Requirement.OVERFLOW:
            return least <= budget.usable
        case Requirement.PREPARE:
            return view.tokens - least >= RULES[requirement].least_shrink * view.tokens
    return True


def _least(item: Item) -> int:
    tokens = item.message.tokens
    return min(tokens, MIN_RESULT) if item.role is Role.TOOL else tokens
