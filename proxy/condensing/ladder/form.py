"""The same view in a form that an error names, or without a member that only the proxy has written.

Each time that an error names one; learned if it is accepted.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.traits import form
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Refusal, Subject
from proxy.settings.profile import Profile, Restriction

FORMS = {Subject.ALTERNATE_ROLES: True, Subject.MIDDLE_SYSTEM: False, Subject.CONTEXT_MANAGEMENT: False}
"""The members of a profile that an error may name, with what it says of them."""


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_form = refused.decision.context.policy.rewrites and not answer.refusal.subjects.isdisjoint(FORMS)
    return is_form or bool(answer.refusal.members)


def restriction_in(refusal: Refusal, sent: Profile) -> Restriction | None:
    """The restriction that the error to a request in the form `sent` names; None if it names none, or a known one."""
    named = {str(each): value for each, value in FORMS.items() if each in refusal.subjects}
    named |= dict.fromkeys(refusal.members, False)
    return next((Restriction(each, value) for each, value in named.items() if getattr(sent, each) != value), None)


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    decision, context = refused.decision, refused.decision.context
    named = restriction_in(answer.refusal, context.policy.profile)
    if named is None:
        return Next(refused, goes_on=True)
    context = form.under(context, context.policy.profile.under(named))
    view = replace(decision.view, transcript=decision.view.transcript.having(form=context.policy.profile.form))
    following = parts.following(refused, decision.with_view(view).in_context(context), named=(named,))
    is_same = following.decision.body == decision.body
    return Next(refused, goes_on=True) if is_same else Next(refused, following)


RUNG = Rung(recognises, after)
