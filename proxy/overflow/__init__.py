"""What an upstream says when a prompt does not fit: recognised, and its numbers read. Pure.

Every server has words of its own for it. They are found in three steps, each a module: all that the body says, however
deeply it is wrapped (`reading`); what that means (`wording`); which numbers it gives (`numbers`).

    input overflow    the prompt is too long: condensing it helps, and the window that is named is the true one
    output cap        a longer reply is asked for than the model ever writes: no prompt is short enough
    anything else     None: rate limits, budgets, too many images, a body that is too large in bytes, broken requests

When in doubt it is None: the client then has the upstream's own error, as if we were not there.
"""

from __future__ import annotations

import re
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from proxy.overflow.numbers import Numbers, numbers_in
from proxy.overflow.reading import is_error, said_in
from proxy.overflow.wording import Meaning, meaning_of

# About who asks, how often, and for which model; whatever else such an answer says, the prompt is not what is wrong.
_NEVER = frozenset({401, 402, 403, 404, 405, 408, 409, 410, 429})

_ERROR = b"error"
_ANSWER = re.compile(rb'"choices"\s*:\s*\[\s*\{')


class Kind(StrEnum):
    """What does not fit."""

    INPUT = "input"
    OUTPUT = "output"


class Refusal(NamedTuple):
    """A request that does not fit. In tokens of the upstream: its `window`, the prompt it has `counted`, the reply that
    was `asked` for; None where it does not say."""

    kind: Kind
    window: int | None = None
    counted: int | None = None
    asked: int | None = None


def recognise(status: int, body: bytes) -> Refusal | None:
    """What the answer with this status and body refuses for its size; None where that is not what it says.

    With a status under 300 it is one only where the body, or the event, is an error.
    """
    if status in _NEVER:
        return None
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return Refusal(Kind.INPUT)
    if status < HTTPStatus.MULTIPLE_CHOICES and _ERROR not in body and _ANSWER.search(body):
        return None  # nearly all replies: there is nothing to read
    said = said_in(body)
    if status < HTTPStatus.BAD_REQUEST and not is_error(said):
        return None
    meaning = meaning_of(said)
    return None if meaning is None else _weighed(meaning, numbers_in(said))


def _weighed(meaning: Meaning, numbers: Numbers) -> Refusal:
    """A refusal of prompt and reply together is one of the reply where the prompt is a small part of it."""
    window, counted, asked = numbers
    if meaning is Meaning.OUTPUT or (window and asked and _is_all_reply(window, counted, asked)):
        return Refusal(Kind.OUTPUT, asked=asked)
    return Refusal(Kind.INPUT, window, counted, asked)


def _is_all_reply(window: int, counted: int | None, asked: int) -> bool:
    return asked >= window or (counted is not None and asked > window * 3 // 4 and counted <= window // 4)


__all__ = ["Kind", "Refusal", "recognise"]
