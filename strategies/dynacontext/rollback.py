"""Rolling back: drops the messages that came between a judged view and this request.

The source document goes back to the last message that it wants to keep. A client sends the later messages again with
every request, so here the view leaves them out instead. The messages that the model must answer always stay.
"""

from __future__ import annotations

from strategies.core.errors import InvalidPlan
from strategies.core.plan import Plan, Replace, apply, check
from strategies.core.view import View


def roll_back(view: View) -> View | None:
    """`view` without the messages between its head and the last user message or the newest round.

    The head of the result also covers the dropped messages. None if there is nothing to drop, or if a round would
    break.
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
