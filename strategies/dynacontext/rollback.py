"""Rolling back: what came between a judged view and this request is dropped with it.

The original goes back to the last message that it wants to keep. A client sends the rest again, so the view leaves it
out instead; what the model must answer stands in any case.
"""

from __future__ import annotations

from strategies.core.errors import InvalidPlan
from strategies.core.plan import Plan, Replace, apply, check
from strategies.core.view import View


def rolled_back(view: View) -> View | None:
    """`view` without what stands between its head and the last user message or the newest round.

    Its head reaches further than before, over what it drops. None where there is nothing to drop, or where a round
    would break.
    """
    last = view.last_user
    end = view.limit if last is None or last < view.head else min(view.limit, last)
    if end <= view.head:
        return None
    try:
        after = apply(view, Plan((Replace(view.head, end),)))
        check(after)
    except InvalidPlan:
        return None
    return after
