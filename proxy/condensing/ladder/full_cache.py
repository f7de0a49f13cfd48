"""The same attempt once more, alone, after the cache that requests to a server share was full of others.

Only the server's own error, and the window that it states, tell such a refusal from one for length.
"""

from __future__ import annotations

import logging

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.knowledge import Knowledge, Pool
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.turn import Decision
from proxy.overflow import Refusal, RefusedPart
from proxy.quoting import label
from proxy.reply.opening import OpenedReply

_log = logging.getLogger(__name__)


def recognises(_refused: Attempt, answer: OpenedReply) -> bool:
    refusal = answer.refusal
    return refusal is not None and refusal.is_server_error and refusal.kind is not RefusedPart.OUTPUT


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    """Another try; nothing if it is not known what the error says; a smaller view if the cache was not full."""
    assert answer.refusal is not None
    # Where a window is set, nobody has asked the server yet what it is.
    await parts.knowledge.asked(refused.decision.context.request.lesson_scope)
    is_full = note_full(parts.knowledge, answer.refusal, refused.decision)
    if is_full is False:
        return Next(refused, goes_on=True)
    if not is_full or Step.REPEATED in refused.tried:
        return Next(refused)
    model = label(refused.decision.context.request.model)
    _log.info("the cache of %s was full; the request is sent again as it is", model)
    await parts.pause()
    return Next(refused, refused._replace(tried=refused.tried | {Step.REPEATED}))


def note_full(knowledge: Knowledge, refusal: Refusal, decision: Decision) -> bool | None:
    """Whether a refusal says that the server's cache is full; then it is known that requests share it."""
    is_full = knowledge.is_full_pool(refusal, decision)
    if is_full:
        pools, scope = knowledge.shared_pools, decision.context.request.lesson_scope._replace(tenant="")
        pools.put(scope, pools.get(scope) or Pool())
    return is_full


RUNG = Rung(recognises, after)
