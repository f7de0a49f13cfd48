"""A preparation that has failed: no other is made of the same view, and judges who wanted it are told why."""

from __future__ import annotations

from typing import NamedTuple

from proxy.condensing.traits.trait import Trait


class FailedTry(NamedTuple):
    applied: str
    """The id of the condensation in the view; "" if there was none."""
    tokens: int
    reason: str = ""
    """Why there is no record; "" if no model was asked and no judge wanted one."""
    judged: bool = False
    branch: str = ""
    at: float = 0.0
    """Seconds since the epoch."""


TRAIT = Trait[FailedTry]("failed_try", lambda row: FailedTry(*row))
