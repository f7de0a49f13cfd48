"""The word "json": where a request wants a JSON object, its server demands that some message has it, so one stays.

Of the user's messages the oldest with the word that is not too long: it is the same in each view. A system message has
it for all, and stays anyway.
"""

from __future__ import annotations

from functools import reduce

from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.values import object_at
from strategies.core.messages import Message, Role
from strategies.core.rounds import structure
from strategies.core.transcript import PIN_SHARE, Transcript, between_cuts

_TOKEN_BYTES = 4


def shape(context: RequestContext, _now: float) -> RequestContext:
    body, budget = context.request.body, context.policy.budget
    window = budget.window if budget else None
    if reduce(object_at, body.endpoint.format_place, body.values).get("type") != "json_object":
        return context
    return context.with_transcripts(lambda transcript: keeping(transcript, window))


def keeping(transcript: Transcript, window: int | None) -> Transcript:
    """The transcript whose views have the word, as far as a message that has it fits."""
    if any(_has_word(message) for _, message in transcript.systems):
        return transcript
    chain, cuts, end = transcript.chain, list[bool](), 0
    for place, message in enumerate(chain):
        if place < end or message.role is not Role.USER or not _has_word(message):
            continue
        cuts = cuts or structure(chain).cuts
        span = between_cuts(place, cuts)
        end = span.stop
        # Not counted in tokens: what stays must not depend on whether that was done.
        if window is None or sum(len(chain[i].data) for i in span) // _TOKEN_BYTES <= window // PIN_SHARE:
            return transcript.having(pinned=transcript.pinned | set(span))
    return transcript


def _has_word(message: Message) -> bool:
    return b"json" in message.data.lower() and "json" in message.text.lower()


TRAIT = Trait[None](
    "json_word", applies=lambda context: '"json_object"' in context.request.body.envelope.text, shape=shape
)
