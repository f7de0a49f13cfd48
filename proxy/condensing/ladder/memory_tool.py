"""The same view without the memory tool, if its model may take no tools; learned if that is accepted."""

from __future__ import annotations

import re

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.reasons import Reason
from proxy.reply.opening import OpenedReply
from proxy.searching import NO_OFFER

TOOLS_REFUSED = (400, 404, 422, 500, 501)  # the statuses with which servers say that a model takes no tools
ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_refused = answer.refusal is None and refused.rounds is not None and answer.reply.status in TOOLS_REFUSED
    return is_refused and bool(ABOUT_TOOLS.search(answer.error))


async def after(parts: Parts, refused: Attempt, _answer: OpenedReply, _timing: Timing) -> Next:
    decision = refused.decision.in_context(refused.decision.context.offering(NO_OFFER))
    decision = decision._replace(offer=NO_OFFER, reason=Reason.MEMORY_TOOL_REFUSED)
    return Next(refused, parts.following(refused, decision, Step.WITHOUT_TOOL))


RUNG = Rung(recognises, after)
