"""The same view in a form that an error names, or without a member that only the proxy has written.

Each time that an error names one; learned if it is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.traits import form
from proxy.protocols.opening import OpenedReply
from proxy.servers.refusals import Refusal, Subject
from proxy.settings.profile import Profile, Restriction

_FALSE = (Subject.MIDDLE_SYSTEM, Subject.CONTEXT_MANAGEMENT, "stream_options")
FORMS: Mapping[str, bool] = {Subject.ALTERNATE_ROLES: True, **dict.fromkeys(_FALSE, False)}
"""The members of a profile that an error may name, with what it says of them."""


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    is_changed = refused.decision.context.policy.rewrites or refused.decision.probed
    return is_changed and restriction_in(answer.refusal, refused.decision.context.policy.profile) is not None


def restriction_in(refusal: Refusal, sent: Profile) -> Restriction | None:
    """The restriction that the error to a request in the form `sent` names; None if it names none, or a known one."""
    named = ((each, value) for each, value in FORMS.items() if each in refusal.subjects | refusal.members)
    return next((Restriction(each, value) for each, value in named if getattr(sent, each) != value), None)


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
