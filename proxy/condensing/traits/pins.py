"""Messages that stay word for word: those that a person has pinned, and those that last by their kind.

Pins are stored as marks of the session, not in its document, so that replicas never undo each other's work
(`proxy/conversations/session.py`).
"""

from __future__ import annotations

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext


def shape(context: RequestContext, _now: float) -> RequestContext:
    pins = [pin.node for pin in context.recognised.pins if pin.is_live]
    window = context.policy.budget.window if context.policy.budget else None
    return context._replace(history=context.history.pinned(pins, window))


TRAIT = Trait[None](
    "pins",
    applies=lambda context: context.recognised.pins or context.history.measured.transcript.lasting,
    shape=shape,
)
