"""A refused trigger for a compaction: no other form of the list helps. `proxy/turn/ends.py` may answer instead."""

from __future__ import annotations

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.knowledge.profiles import refuses_trigger
from proxy.reply.opening import OpenedReply


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_asked = refused.decision.context.compacting is not None
    return is_asked and refuses_trigger(answer.reply.status, answer.error)


async def after(_parts: Parts, refused: Attempt, _answer: OpenedReply, _timing: Timing) -> Next:
    return Next(refused)


RUNG = Rung(recognises, after)
