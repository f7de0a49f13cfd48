"""The size of a view that the session's upstream has refused: it bounds the session's views for an hour.

The rung `length` says what a refusal teaches. A session that is not stored has its size in the memory of this
process (`LearnedWindows.sizes`).
"""

from __future__ import annotations

from proxy.condensing.attempt import Turn
from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import Decision
from proxy.servers.windows import SIZE_REFUSED, SizeRefused


def ends(decision: Decision) -> bool:
    """Whether the size that bounds the session ends once this view is accepted, because it is longer."""
    size = TRAIT.of(decision.context)
    return size is not None and decision.tokens_after > size.own


def after(stored: SizeRefused | None, turn: Turn, _now: float) -> SizeRefused | None:
    decision = turn.sent.decision
    return newest(stored, TRAIT.of(decision.context), ends=not turn.reply.is_late_refusal and ends(decision))


def newest(stored: SizeRefused | None, known: SizeRefused | None, *, ends: bool) -> SizeRefused | None:
    """The size refused that bounds the session after a request: the newest one, unless the request has ended it.

    `known` bounded the request, or was learned from it; it `ends` if a longer view was accepted. The stored one may be
    another model's, or that of a request which was answered meanwhile.
    """
    if stored is None or stored == known:
        return None if ends else known
    is_newer = known is not None and not ends and known.until > stored.until
    return known if is_newer else stored


TRAIT = Trait[SizeRefused](SIZE_REFUSED, lambda row: SizeRefused(*row), after=after)
