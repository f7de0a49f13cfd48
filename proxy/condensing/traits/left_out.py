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
from proxy.tokens.counter import INLINE_CHARS, Counter
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
    transcript, counter = context.history.measured.transcript, context.server.counter
    leaving = {at: numbers for at, *numbers in out.parts}
    chain = list(transcript.chain)
    for at, message in enumerate(chain):
        if at not in transcript.stays and (at in leaving or 0 < out.characters < len(message.data)):
            chain[at] = _written(message, leaving.get(at, (0, 0)), out.characters, counter)
    history = context.history._replace(shown=transcript.with_bodies(chain))
    return TRAIT.put(context, out)._replace(history=history)


def _written(message: Message, numbers: Sequence[int], characters: int, counter: Counter) -> Message:
    """A message without so many pictures and documents, and with at most so many characters in a string."""
    body, seen = without_parts(message.body, PICTURES, numbers[0])
    body, read = without_parts(body, DOCUMENTS, numbers[1])
    body = shortened(body, characters) if characters else body
    if body == message.body:
        return message
    before, left, data = message.pictures, message.pictures.number - len(seen), dump(body).encode()
    after = Pictures(left, before.tokens * left // before.number) if left > 0 else NO_PICTURES
    # What is still long takes long to count.
    is_counted = seen or read or len(data) <= INLINE_CHARS
    tokens = counter.message(body) if is_counted else message.tokens * len(data) // len(message.data)
    return replace(message, data=data, parsed=body, tokens=tokens, pictures=after)


def after(stored: LeftOut | None, turn: Turn, _now: float) -> LeftOut | None:
    context = turn.sent.decision.context
    return TRAIT.of(context) if context.history.shown is not context.history.measured.transcript else stored


TRAIT = Trait[LeftOut]("left_out", lambda row: LeftOut(*row), shape=shape, after=after)
