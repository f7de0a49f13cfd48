"""A vendor's own compaction: as the head of a view, what is carried for it and who can read it; in a client's list.

The vendor ignores what a client sends before the last one. So that passes as it came and counts nothing: those messages
are pinned at the beginning of each view. A model that serves no such form reads it all, and so does a server that has
refused the length of what was sent.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.protocols import compaction
from proxy.servers.windows import SOURCE
from proxy.tokens.models import is_openais, plain_name
from strategies.core.parsing import objects_in
from strategies.core.pieces import carried_in
from strategies.core.rounds import structure
from strategies.core.transcript import Transcript, standing_patches

_MARK = b'"compaction"'


def shape(context: RequestContext, _now: float) -> RequestContext:
    history = context.history.changed(_ignoring) if _is_in_list(context) else context.history
    known = [each for each in context.recognised.condensations if each.covered > history.transcript.leading]
    maker = compaction.maker(context.request.upstream.base_url, context.request.model)
    readable = tuple(each for each in known if each.is_readable_by(maker))
    recognised = context.recognised._replace(condensations=readable, reader=maker)
    context = context._replace(recognised=recognised, history=history)
    patches = carried_in(context.recognised.patches)
    return context.with_transcripts(
        lambda transcript: transcript.having(patches=standing_patches(patches, transcript)) if patches else transcript
    )


def _is_in_list(context: RequestContext) -> bool:
    """Whether it may have one, and its vendor is known to serve the form of its protocol."""
    request, policy, name = context.request, context.policy, plain_name(context.request.model)
    is_known = is_openais(name) if request.body.endpoint.compact_path else "claude" in name
    is_refused = policy.size_refused is not None or policy.window.source == SOURCE
    return is_known and not is_refused and _MARK in request.body.data


def _before_last(transcript: Transcript) -> int | None:
    """How many messages of the chain stand before the last compaction; None if there is none."""
    items = [at for at, each in transcript.systems if _MARK in each.data and each.body.get("type") == "compaction"]
    said = [(at, each.body.get("content")) for at, each in enumerate(transcript.chain) if _MARK in each.data]
    blocks = [at for at, content in said for block in objects_in(content) if block.get("type") == "compaction"]
    return max((*items, *blocks), default=None)


def _ignoring(transcript: Transcript) -> Transcript:
    """The transcript in which the messages before a compaction count nothing, and stay with those that belong to it."""
    if (before := _before_last(transcript)) is None:
        return transcript
    chain, cuts = transcript.chain, structure(transcript.chain).cuts
    leading = next((place for place in range(before + 1, len(chain)) if cuts[place]), len(chain))
    counted = (replace(each, tokens=each.tokens if at >= before else 0) for at, each in enumerate(chain))
    pinned = transcript.pinned | set(range(leading))
    return transcript.with_bodies(counted).having(leading=leading, pinned=pinned)


def applies(context: RequestContext) -> bool:
    is_in_list, known = _MARK in context.request.body.data, bool(context.recognised.condensations)
    return is_in_list or known or any(stage.reads_opaque for stage in context.policy.stages)


TRAIT = Trait[None]("opaque_head", applies=applies, shape=shape)
