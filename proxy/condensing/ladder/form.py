"""The same view in a form that an error names, each time that one does; learned if it is accepted."""

from __future__ import annotations

from dataclasses import replace

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.knowledge.profiles import restriction_in
from proxy.reply.opening import OpenedReply


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    return bool(answer.error) and refused.decision.context.policy.rewrites


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    decision, context = refused.decision, refused.decision.context
    named = restriction_in(answer.reply.status, answer.error, context.policy.profile)
    if named is None:
        return Next(refused, goes_on=True)
    context = context.for_profile(context.policy.profile.under(named))
    view = replace(decision.view, transcript=decision.view.transcript.having(form=context.policy.profile.form))
    following = parts.following(refused, decision.with_view(view).in_context(context), named=(named,))
    is_same = following.decision.body == decision.body
    return Next(refused, goes_on=True) if is_same else Next(refused, following)


RUNG = Rung(recognises, after)
