"""Messages that a person has pinned: they stay word for word.

Pins are stored as marks of the session, not in its document, so that replicas never undo each other's work
(`proxy/conversations/session.py`).
"""

from __future__ import annotations

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext


def shape(context: RequestContext, _now: float) -> RequestContext:
    return context.with_pinned([pin.node for pin in context.recognised.pins if pin.is_live])


TRAIT = Trait[None]("pins", applies=lambda context: context.recognised.pins, shape=shape)
