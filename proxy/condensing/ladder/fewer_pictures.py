"""The same view without the oldest pictures, if its bytes or its pictures were refused; once.

They are counted from the beginning of the chain, and the session remembers how many were left out, so that the next
view begins with the bytes of this one. A later refusal leaves out more.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from proxy.condensing.account import Timing
from proxy.condensing.attempt import Attempt, Step
from proxy.condensing.ladder.rung import Next, Parts, Rung
from proxy.condensing.turn import RequestContext
from proxy.overflow import read_body
from proxy.reply.opening import OpenedReply
from proxy.sessions.session import PicturesOut
from strategies.core.messages import Message, dump
from strategies.dialects.pictures import has_pictures, pictures

_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_BYTES = re.compile(
    r"request_too_large|(?:request|payload|body|entity|content)[^.;]{0,40}(?:too large|exceeds? the max)"
    r"|(?:request|payload|body)[^.;]{0,60}exceed[^.;]{0,40}(?:size|bytes|[mk]i?b\b)"
    r"|^request too long$|request body: length limit exceeded"
)
_PICTURES = re.compile(
    r"at most ([1-9]\d{0,3}) images?(?:\(s\))? may be provided"
    r"|too many images(?: and documents)?: [\d +]{1,20}> ?(\d{1,4})\b|too much media: [\w +]{1,60}> ?(\d{1,4})\b"
    r"|\d images, exceeding the maximum of (\d{1,4})\b|image count \d{1,4} exceeds limit (\d{1,4})\b"
    r"|can only include (\d{1,4}) image links"
    r"|too many images\b(?:.{0,60}?\b(?:max(?:imum)?(?: is| of)?|up to|at most) (\d{1,4})\b)?"
    r"|many-image requests"
)
"""What vendors and servers are known to say of too many pictures, with the number that they allow."""
_RATE = re.compile(r"per (?:min|minute|hour|day)\b|\b[rt]pm\b|\btokens?\b")
MANY = 20  # pictures from which a vendor's stricter rule about their size holds ("many-image requests")
SHARE_KEPT = 0.5  # the share of the refused bytes, or pictures, that the next request has at most


def recognises(refused: Attempt, answer: OpenedReply) -> bool:
    status, error = answer.reply.status, answer.error
    is_about_pictures = refuses_bytes(status, error) or pictures_allowed(status, error) is not None
    is_possible = refused.decision.context.policy.rewrites and Step.FEWER_PICTURES not in refused.tried
    return is_about_pictures and is_possible


async def after(parts: Parts, refused: Attempt, answer: OpenedReply, _timing: Timing) -> Next:
    if (fewer := context_without(refused, answer)) is None:
        return Next(refused, goes_on=True)
    decision = refused.decision.with_view(refused.decision.view.over(fewer.shown))
    return Next(refused, parts.following(refused, decision.in_context(fewer), Step.FEWER_PICTURES))


def context_without(attempt: Attempt, refused: OpenedReply) -> RequestContext | None:
    """The context that leaves out enough pictures; None if none can leave."""
    context, decision = attempt.decision.context, attempt.decision
    allowed = pictures_allowed(refused.reply.status, refused.error)
    if context.measured is not context.whole:
        return None  # the list as its client sent it, in which other messages have other places
    chain, known = context.history.chain, context.pictures_out.number if context.pictures_out else 0
    shown = {id(message) for message in decision.view.messages}
    written = zip(chain, context.shown.chain, strict=True)
    sizes = [(at, size if id(sent) in shown else 0) for at, (own, sent) in enumerate(written) for size in _sizes(own)]
    in_view = sum(size > 0 for _, size in sizes[known:])
    if allowed is not None:
        leaving, saved = in_view - (allowed or int(SHARE_KEPT * in_view)), 0.0
    else:
        leaving, saved = 0, (1 - SHARE_KEPT) * len(decision.body)
    number = known
    # The newest picture always stays.
    while number < len(sizes) - 1 and (leaving > 0 or saved > 0):
        size = sizes[number][1]
        number, leaving, saved = number + 1, leaving - (size > 0), saved - size
    if number == known:
        return None
    at = sizes[number - 1][0]
    out = PicturesOut(number, at + 1, context.history.digests[at].hex())
    return context.leaving_out(out)


def _sizes(message: Message) -> list[int]:
    """The bytes of each picture of a message, in order."""
    return [len(dump(picture)) for picture in pictures(message.body)] if has_pictures(message.data) else []


def refuses_bytes(status: int, body: bytes) -> bool:
    """Whether an error is about the bytes of a request."""
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return True
    return status in _STATUSES and any(_BYTES.search(said) for said in _said(body))


def pictures_allowed(status: int, body: bytes) -> int | None:
    """How many pictures an error allows, 0 if it states no number; None if it is not about their number or size."""
    found = map(_PICTURES.search, _said(body)) if status in _STATUSES else ()
    match = next(filter(None, found), None)
    if match is None:
        return None
    return MANY if match[0].startswith("many-image") else int(next(filter(None, match.groups()), 0))


def _said(body: bytes) -> list[str]:
    content = read_body(body)
    return [said for said in (*content.texts, *content.codes) if not _RATE.search(said)]


RUNG = Rung(recognises, after)
