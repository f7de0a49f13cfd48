"""Leaves the oldest pictures out of a view whose request was refused for its bytes, or for its pictures.

They are counted from the beginning of the chain, and the session remembers how many were left out, so that the next
view begins with the bytes of this one. A later refusal leaves out more.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from proxy.condensing.attempt import Attempt
from proxy.condensing.context import RequestContext
from proxy.overflow import read_body
from proxy.reply.opening import OpenedReply
from proxy.sessions.session import PicturesOut
from strategies.core.messages import Message, dump
from strategies.dialects.pictures import has_pictures, without_pictures

_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BYTES = re.compile(
    r"request_too_large|(?:request|payload|body|entity|content)[^.;]{0,40}(?:too large|exceeds? the max)"
    r"|(?:request|payload|body)[^.;]{0,60}exceed[^.;]{0,40}(?:size|bytes|[mk]i?b\b)"
)
_PICTURES = re.compile(
    r"too many (?:images|pictures)|many-image|(?:number of|maximum of|at most|up to|more than|supports?|max(?:imum)?)"
    r"[^.;]{0,40}\bimages?(?:\(s\))?\b|\bimages?\b[^.;]{0,60}(?:limit|exceed|at most|maximum|too many)"
)
_RATE = re.compile(r"per (?:min|minute|hour|day)\b|\b[rt]pm\b|\btokens?\b")
_NUMBER = re.compile(
    r"(?:at most|up to|maximum|max|limit|more than|only|allowed|supports?)\D{0,30}(\d{1,4})\b(?! ?pixels)"
)
MANY = 20
"""Pictures from which a vendor's stricter rule about their size holds ("many-image requests")."""
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


# -- what the error says -------------------------------------------------------------------------------------------


def refuses_bytes(status: int, body: bytes) -> bool:
    """Whether an error is about the bytes of a request."""
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return True
    return status in _STATUSES and any(_BYTES.search(said) for said in _said(body))


def pictures_allowed(status: int, body: bytes) -> int | None:
    """How many pictures an error allows, 0 if it states no number; None if it is not about their number or size."""
    texts = [said for said in _said(body) if _PICTURES.search(said)] if status in _STATUSES else []
    if not texts:
        return None
    if any("many-image" in said for said in texts):
        return MANY
    found = (_NUMBER.search(said) for said in texts)
    return next((int(match[1]) for match in found if match), 0)


def _said(body: bytes) -> list[str]:
    content = read_body(body)
    return [said for said in (*content.texts, *content.codes) if not _RATE.search(said)]
