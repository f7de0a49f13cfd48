"""The same view without the memory tool, if its model may take no tools; learned if that is accepted."""

from __future__ import annotations

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.conversations.searching import NO_OFFER
from proxy.protocols.opening import OpenedReply
from proxy.reasons import Reason
from proxy.servers.refusals import Subject


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_offered = refused.rounds is not None and not answer.refusal.sizes
    return is_offered and Subject.TOOLS in answer.refusal.subjects


async def after(parts: Parts, refused: Attempt, _answer: OpenedReply, _timing: Timing) -> Next:
    decision = refused.decision.in_context(refused.decision.context.offering(NO_OFFER))
    decision = decision._replace(offer=NO_OFFER, reason=Reason.MEMORY_TOOL_REFUSED)
    return Next(refused, parts.following(refused, decision, Step.WITHOUT_TOOL))


RUNG = Rung(recognises, after)
