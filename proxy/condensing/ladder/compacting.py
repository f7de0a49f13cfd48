"""A refused trigger for a compaction: no other form of the list helps. `proxy/turn/ends.py` may answer instead."""

from __future__ import annotations

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Subject


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    return refused.decision.context.aside is not None and Subject.TRIGGER in answer.refusal.subjects


async def after(_parts: Parts, refused: Attempt, _answer: OpenedReply, _timing: Timing) -> Next:
    return Next(refused)


RUNG = Rung(recognises, after)
