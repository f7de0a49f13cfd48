"""What the views of a session lack, because a request was refused for its size: the oldest pictures and documents, and
the middle of strings that are too long.

The rung `size` says how many, and the session remembers it, so that the next view begins with the bytes of this one.
Digests and what is stored stay those of the client's list. The last user message and pins are shown whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from proxy.condensing.attempt import Turn
from proxy.condensing.traits.trait import Trait
from proxy.condensing.turn import RequestContext
from proxy.conversations.session import has_node
from proxy.tokens.counter import Counter
from strategies.core.messages import NO_PICTURES, Message, Pictures, dump
from strategies.dialects.parts import DOCUMENTS, PICTURES, shortened, without_parts


class LeftOut(NamedTuple):
    parts: Sequence[Sequence[int]]
    """Messages by their chain index, with how many of their first pictures and documents leave."""
    node: str
    """The chain digest after the last of these messages, in hex."""
    characters: int
    """The most characters of a string; 0 for any number."""


def shape(context: RequestContext, _now: float) -> RequestContext:
    session, digests = context.recognised.session, context.history.transcript.digests
    out = TRAIT.of(session) if session is not None and context.policy.rewrites else None
    is_here = out is not None and (not out.parts or has_node(digests, out.parts[-1][0] + 1, bytes.fromhex(out.node)))
    return leaving_out(context, out) if out is not None and is_here else context


def leaving_out(context: RequestContext, out: LeftOut) -> RequestContext:
    """The context whose views lack this."""
    transcript = context.history.measured.transcript
    chain = [
        message if at in transcript.stays else _shortened(message, out) for at, message in enumerate(transcript.chain)
    ]
    for at, pictures, documents in out.parts:
        if at not in transcript.stays:
            chain[at] = _without(chain[at], pictures, documents, context.server.counter)
    history = context.history._replace(shown=transcript.with_bodies(chain))
    return TRAIT.put(context, out)._replace(history=history)


def _without(message: Message, pictures: int, documents: int, counter: Counter) -> Message:
    """A message of the chain with a body that lacks so many of its parts."""
    body, number = without_parts(message.body, PICTURES, pictures)
    body, _ = without_parts(body, DOCUMENTS, documents)
    before, left = message.pictures, message.pictures.number - number
    after = Pictures(left, before.tokens * left // before.number) if left > 0 else NO_PICTURES
    return replace(message, data=dump(body).encode(), parsed=body, tokens=counter.message(body), pictures=after)


def _shortened(message: Message, out: LeftOut) -> Message:
    """A message of the chain without what its strings have too much, and as many tokens fewer as it has bytes."""
    if not out.characters or len(message.data) <= out.characters:
        return message
    body = shortened(message.body, out.characters)
    data = dump(body).encode("utf-8", "surrogatepass")
    if body == message.body:
        return message
    return replace(message, data=data, parsed=body, tokens=message.tokens * len(data) // len(message.data))


def after(stored: LeftOut | None, turn: Turn, _now: float) -> LeftOut | None:
    context = turn.sent.decision.context
    return TRAIT.of(context) if context.history.shown is not context.history.measured.transcript else stored


TRAIT = Trait[LeftOut]("left_out", lambda row: LeftOut(*row), shape=shape, after=after)
