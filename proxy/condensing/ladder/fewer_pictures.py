"""The same view without the oldest pictures, if its bytes or its pictures were refused; once.

They are counted from the beginning of the chain, and the session remembers how many were left out, so that the next
view begins with the bytes of this one. A later refusal leaves out more.
"""

from __future__ import annotations

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.traits import pictures_out
from proxy.condensing.turn import RequestContext
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Unit
from strategies.core.messages import Message, dump
from strategies.dialects.pictures import has_pictures, pictures

SHARE_KEPT = 0.5  # the share of the refused bytes, or pictures, that the next request has at most


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_possible = refused.decision.context.policy.rewrites and Step.FEWER_PICTURES not in refused.tried
    return is_possible and answer.refusal.size(Unit.PICTURES, Unit.BYTES) is not None


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    if (fewer := context_without(refused, answer)) is None:
        return Next(refused, goes_on=True)
    decision = refused.decision.with_view(refused.decision.view.over(fewer.history.shown))
    return Next(refused, parts.following(refused, decision.in_context(fewer), Step.FEWER_PICTURES))


def context_without(attempt: Attempt, refused: OpenedReply) -> RequestContext | None:
    """The context that leaves out enough pictures; None if none can leave."""
    context, decision = attempt.decision.context, attempt.decision
    allowed = refused.refusal.size(Unit.PICTURES)
    if context.history.measured is not context.history.whole:
        return None  # the list as its client sent it, in which other messages have other places
    chain, already = context.history.transcript.chain, pictures_out.TRAIT.of(context)
    known = already.number if already else 0
    shown = {id(message) for message in decision.view.messages}
    written = zip(chain, context.history.shown.chain, strict=True)
    sizes = [(at, size if id(sent) in shown else 0) for at, (own, sent) in enumerate(written) for size in _sizes(own)]
    in_view = sum(size > 0 for _, size in sizes[known:])
    if allowed is not None:
        leaving, saved = in_view - (allowed.limit or int(SHARE_KEPT * in_view)), 0.0
    else:
        leaving, saved = 0, (1 - SHARE_KEPT) * len(decision.body)
    number = known
    # The newest picture always stays.
    while number < len(sizes) - 1 and (leaving > 0 or saved > 0):
        size = sizes[number][1]
        number, leaving, saved = number + 1, leaving - (size > 0), saved - size
    if number == known:
        return None
    at = sizes[number - 1][0]
    out = pictures_out.PicturesOut(number, at + 1, context.history.transcript.digests[at].hex())
    return pictures_out.leaving_out(context, out)._replace(must_store=True)


def _sizes(message: Message) -> list[int]:
    """The bytes of each picture of a message, in order."""
    return [len(dump(picture)) for picture in pictures(message.body)] if has_pictures(message.data) else []


RUNG = Rung(recognises, after)
