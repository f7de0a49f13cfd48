"""A vendor's own compaction as the head of a view: what is carried for it, at its places, and who can read it."""

from __future__ import annotations

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.protocols import compaction
from strategies.core.pieces import carried_in
from strategies.core.transcript import standing_patches


def shape(context: RequestContext, _now: float) -> RequestContext:
    known = context.recognised.condensations
    maker = compaction.maker(context.request.upstream.base_url, context.request.model)
    readable = tuple(each for each in known if each.is_readable_by(maker))
    recognised = context.recognised._replace(condensations=readable, reader=maker)
    context = context._replace(recognised=recognised)
    patches = carried_in(context.recognised.patches)
    return context.with_transcripts(
        lambda transcript: transcript.having(patches=standing_patches(patches, transcript)) if patches else transcript
    )


def applies(context: RequestContext) -> bool:
    return bool(context.recognised.condensations) or any(stage.reads_opaque for stage in context.policy.stages)


TRAIT = Trait[None]("opaque_head", applies=applies, shape=shape)
