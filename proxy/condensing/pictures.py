"""Leaves the oldest pictures out of a view whose request was refused for its bytes, or for its pictures.

They are counted from the beginning of the chain, and the session remembers how many were left out, so that the next
view begins with the bytes of this one. A later refusal leaves out more.
"""

from __future__ import annotations

from proxy.condensing.attempt import Attempt
from proxy.condensing.context import RequestContext
from proxy.overflow.pictures import pictures_allowed, refuses_bytes
from proxy.reply.opening import OpenedReply
from proxy.sessions.session import PicturesOut
from strategies.core.messages import Message, dump
from strategies.dialects.pictures import has_pictures, without_pictures

SMALLER = 0.5
"""The share of the refused bytes, or pictures, that the next request has at most."""


def context_without(attempt: Attempt, refused: OpenedReply) -> RequestContext | None:
    """The context that leaves out enough pictures; None if the error is about something else, or none can leave."""
    context, decision = attempt.rewritable, attempt.decision
    status, error = refused.reply.status, refused.error
    allowed = pictures_allowed(status, error)
    if context is None or attempt.is_last or (allowed is None and not refuses_bytes(status, error)):
        return None
    chain, known = context.history.chain, context.pictures_out.number if context.pictures_out else 0
    shown = {id(message) for message in decision.view.messages}
    sizes = [(at, size if id(message) in shown else 0) for at, message in enumerate(chain) for size in _sizes(message)]
    in_view = sum(size > 0 for _, size in sizes[known:])
    if allowed is not None:
        leaving, saved = in_view - (allowed or int(SMALLER * in_view)), 0.0
    else:
        leaving, saved = 0, (1 - SMALLER) * len(decision.body)
    number = known
    # The newest picture always stays.
    while number < len(sizes) - 1 and (leaving > 0 or saved > 0):
        size = sizes[number][1]
        number, leaving, saved = number + 1, leaving - (size > 0), saved - size
    if number == known:
        return None
    at = sizes[number - 1][0]
    out = PicturesOut(number, at + 1, context.history.digests[at].hex())
    return context._replace(pictures_out=out)


def _sizes(message: Message) -> list[int]:
    """The bytes of each picture of a message, in order."""
    if not has_pictures(message.data):
        return []
    sizes = list[int]()
    body, before = message.body, len(dump(message.body))
    while True:
        body, number = without_pictures(body, 1)
        if not number:
            return sizes
        after = len(dump(body))
        sizes.append(max(before - after, 1))
        before = after
