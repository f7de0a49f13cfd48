"""The request as it came, if nothing explains a refusal and it would fit: our rewriting may be the cause."""

from __future__ import annotations

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.traits import rewriting
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import WRONG


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_explained = answer.refusal.sizes or refused.tried & {Step.SMALLER, Step.LIGHTER}
    return not is_explained and answer.reply.status in WRONG and refused.decision.context.policy.rewrites


async def after(parts: Parts, refused: Attempt, _answer: OpenedReply, _timing: Timing) -> Next:
    following = parts.attempts.original_of(refused.decision)
    if following is None:
        return Next(refused)
    decision = following.decision
    context = rewriting.TRAIT.put(decision.context, rewriting.RefusedRewriting(1))
    return Next(refused, following._replace(decision=decision.in_context(context)))


RUNG = Rung(recognises, after)
