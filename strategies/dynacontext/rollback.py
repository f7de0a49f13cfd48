"""What a record leaves out: drops messages behind it when it is applied for the first time.

With `on_drift=rollback` these are all messages between the record and those that the model must answer. The source
document goes back to the last message that it wants to keep; a client sends the later ones again with every request, so
here the view leaves them out. With `tail=drop` it is the tail of the judged messages alone: it was the newest round
when the record was made, which no plan may touch, and is older now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strategies.core.errors import InvalidPlan
from strategies.core.plan import Plan, Replace, apply, check
from strategies.core.protocol import Shortened
from strategies.core.view import View
from strategies.dynacontext.options import DynaContextOptions
from strategies.dynacontext.scope import sources

JUDGED_COUNT, EXCLUDED = "judged_message_count", "tail_exclusion_count"


def leave_out(view: View, options: DynaContextOptions, telemetry: Mapping[str, Any]) -> Shortened | None:
    """`view` without what the options leave out, and the `telemetry` of its record with what that was.

    The head of the result also covers the dropped messages. None if there is nothing to drop, or if a round would
    break.
    """
    judged = int(telemetry.get(JUDGED_COUNT, 0))
    start, end = _span(view, options, judged, int(telemetry.get(EXCLUDED, 0)))
    if end <= start:
        return None
    try:
        after = apply(view, Plan((Replace(start, end),)))
        check(after)
    except InvalidPlan:
        return None
    dropped = dropped_fields(sources(view, start, end), judged)
    excluded = max(int(telemetry.get(EXCLUDED, 0)), dropped["dropped_judged_count"])
    return Shortened(after, {**telemetry, EXCLUDED: excluded, **dropped})


def dropped_fields(dropped: Iterable[int], judged: int) -> dict[str, Any]:
    """The telemetry fields of the messages that are in neither record nor view; the first `judged` were voted on."""
    indices = list(dropped)
    voted_on = [index for index in indices if index < judged]
    return {
        "dropped_judged_count": len(voted_on),
        "dropped_judged_event_ids": voted_on,
        "dropped_drift_count": len(indices) - len(voted_on),
    }


def _span(view: View, options: DynaContextOptions, judged: int, excluded: int) -> tuple[int, int]:
    """The items to drop: none of those that the model must answer."""
    most = min([view.limit, *(i for i in view.question if i >= view.head)])
    if options.on_drift == "rollback":
        return view.head, most
    start, end = view.item_of(judged - excluded), view.item_of(judged - options.keep_last)
    if options.tail != "drop" or start is None or end is None:
        return 0, 0
    return max(start, view.head), min(end, most)
