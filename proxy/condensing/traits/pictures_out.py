"""The oldest pictures of a history, left out of its views because a request was refused for its size.

They are counted from the beginning of the chain, so that the next view begins with the bytes of this one. The rung
`fewer_pictures` says how many; digests and what is stored stay those of the client's list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from proxy.condensing.attempt import Turn
from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.conversations.session import has_node
from proxy.tokens.counter import Counter
from strategies.core.messages import NO_PICTURES, Message, Pictures, Value, dump
from strategies.dialects.pictures import has_pictures, without_pictures


class PicturesOut(NamedTuple):
    number: int
    length: int
    """How many first messages of the chain have them."""
    node: str
    """The chain digest after those messages, in hex."""


def shape(context: RequestContext, _now: float) -> RequestContext:
    session, digests = context.recognised.session, context.history.transcript.digests
    out = TRAIT.of(session) if session is not None and context.policy.rewrites else None
    is_here = out is not None and has_node(digests, out.length, bytes.fromhex(out.node))
    return leaving_out(context, out) if out is not None and is_here else context


def leaving_out(context: RequestContext, out: PicturesOut) -> RequestContext:
    """The context whose views lack these pictures."""
    transcript, left = context.history.measured.transcript, out.number
    chain = list(transcript.chain)
    for at, message in enumerate(chain[: out.length]):
        body, number = without_pictures(message.body, left) if has_pictures(message.data) else ({}, 0)
        if number:
            left -= number
            chain[at] = _rewritten(message, body, number, context.server.counter)
    history = context.history._replace(shown=transcript.with_bodies(chain))
    return TRAIT.put(context, out)._replace(history=history)


def _rewritten(message: Message, body: Value, left_out: int, counter: Counter) -> Message:
    """A message of the chain with a body that lacks so many of its pictures."""
    number, tokens = message.pictures
    left = number - left_out
    pictures = Pictures(left, tokens * left // number) if left > 0 else NO_PICTURES
    data = dump(body).encode()
    return replace(message, data=data, parsed=body, tokens=counter.message(body), pictures=pictures)


def after(stored: PicturesOut | None, turn: Turn, _now: float) -> PicturesOut | None:
    context = turn.sent.decision.context
    return TRAIT.of(context) if context.history.shown is not context.history.measured.transcript else stored


TRAIT = Trait[PicturesOut]("pictures_out", lambda row: PicturesOut(*row), shape=shape, after=after)
