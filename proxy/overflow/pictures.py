"""Recognises an upstream's error that a request has too many bytes, or too many or too large pictures. No I/O."""

from __future__ import annotations

import re
from http import HTTPStatus

from proxy.overflow import read_body

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
