"""An upstream that has accepted requests only as the client wrote them, for no reason that it gave.

After two such proofs (the rung `original`) the session's requests to it go as they come for an hour, as long as they
fit.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.condensing.attempt import Step, Turn, fits_whole, for_original
from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.controls import MEMORY

PROOFS = 2
SPARED_FOR = 3_600.0
"""Seconds for which a session is spared rewriting after the last proof that its upstream refuses it."""


class RefusedRewriting(NamedTuple):
    """How often an upstream accepted a request only as the client wrote it."""

    proofs: int = 0
    until: float = 0.0
    """Until when they count, in seconds since the epoch."""
    upstream: str = ""

    def after_one_more(self, upstream: str, now: float) -> RefusedRewriting:
        counts = self.upstream == upstream and self.until > now
        return RefusedRewriting((self.proofs if counts else 0) + 1, now + SPARED_FOR, upstream)

    def spares(self, upstream: str, now: float) -> bool:
        """Whether the session's requests to an upstream are sent as they come, as long as they fit.

        One error proves nothing.
        """
        return self.proofs >= PROOFS and self.upstream == upstream and self.until > now


def sized(context: RequestContext, now: float) -> RequestContext:
    """The context for sending the request as it came, if its session is spared rewriting and it fits."""
    session = context.recognised.session
    known = TRAIT.of(session) if session is not None else None
    is_spared = known is not None and known.spares(context.request.upstream.base_url, now)
    if not (is_spared and context.policy.rewrites and fits_whole(context)):
        return context
    # Its policy is not `off`: a refusal for length may still condense it.
    policy = context.policy._replace(memory=MEMORY["off"])
    return for_original(context)._replace(policy=policy, is_spared=True)


def after(stored: RefusedRewriting | None, turn: Turn, now: float) -> RefusedRewriting | None:
    if Step.ORIGINAL in turn.sent.tried:
        return (stored or RefusedRewriting()).after_one_more(turn.asked.upstream.base_url, now)
    return stored if stored is not None and stored.until > now else None


TRAIT = Trait[RefusedRewriting]("rewriting", lambda row: RefusedRewriting(*row), sized=sized, after=after)
