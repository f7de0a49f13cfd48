"""The form of views that a server accepts: each is written in it from the start, once a refusal has named it."""

from __future__ import annotations

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.settings.profile import Profile


def shape(context: RequestContext, _now: float) -> RequestContext:
    form = context.policy.profile.form
    return context.with_transcripts(lambda transcript: transcript.having(form=form))


def applies(context: RequestContext) -> bool:
    return context.policy.profile.form != context.history.measured.transcript.form


def under(context: RequestContext, profile: Profile) -> RequestContext:
    """The context for an upstream with this profile, whose form its views are written in."""
    context = context._replace(policy=context.policy._replace(profile=profile))
    return shape(context, 0.0) if applies(context) else context


TRAIT = Trait[None]("form", applies=applies, shape=shape)
