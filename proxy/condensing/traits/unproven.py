"""A session that began at an upstream that judges nobody: it is shown there without a proof, until one judges it."""

from __future__ import annotations

from proxy.callers.tenants import UNPROVEN
from proxy.condensing.attempt import Turn
from proxy.condensing.traits.trait import Trait


def after(stored: bool | None, turn: Turn, _now: float) -> bool | None:
    return stored if turn.asked.trust.elsewhere else None


TRAIT = Trait[bool](UNPROVEN, bool, after=after)
