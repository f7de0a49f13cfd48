"""The view without the opaque head that its server cannot read, condensed in the time left if it must be."""

from __future__ import annotations

import logging
from dataclasses import replace

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step, undecided
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.protocols.opening import OpenedReply
from proxy.reasons import Reason
from proxy.servers.refusals import Subject

_log = logging.getLogger(__name__)


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    head = refused.decision.applied
    is_opaque = head is not None and head.is_opaque and Step.WITHOUT_HEAD not in refused.tried
    return is_opaque and Subject.OPAQUE_HEAD in answer.refusal.subjects


async def after(parts: Parts, refused: Attempt, _answer: OpenedReply, timing: Timing) -> Next:
    decision, context = refused.decision, refused.decision.context
    name = decision.applied.id if decision.applied else ""
    _log.warning("the upstream refused its own compaction %s; it is not sent again", name)
    known = context.recognised.condensations
    known = tuple(replace(each, standing=False, reverted=True) if each.is_opaque else each for each in known)
    context = context._replace(recognised=context.recognised._replace(condensations=known))
    for each in known if context.may_store else ():
        if each.is_opaque:
            await parts.attempts.keeper.take_back(context.recognised, each)
    plain = undecided(context)._replace(own_tokens=decision.own_tokens, offer=decision.offer)
    budget = context.sized.budget
    if budget is not None and plain.tokens_after >= budget.trigger:
        plain = await parts.shrunk(plain, budget, timing)
    reason = Reason.COMPACTION_REFUSED
    return Next(refused, parts.following(refused, plain._replace(reason=reason), Step.WITHOUT_HEAD))


RUNG = Rung(recognises, after)
