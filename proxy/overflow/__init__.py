"""Recognises what an upstream says when a prompt does not fit, and reads the numbers that it gives. No I/O.

Every server words this differently. It is recognised in two steps, each a module: all that the body says, however
deeply it is wrapped (`reading`); what that means and which numbers it gives (`wording`).

    input overflow    the prompt is too long: condensing it helps, and a window that is named is the true one
    output cap        a longer reply is asked for than the model ever writes: no prompt is short enough
    anything else     None: rate limits, budgets, too many images, a body that is too large in bytes, broken requests

When in doubt the answer is None: the client then gets the upstream's own error, as if there were no proxy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple

from proxy.overflow.reading import is_error, read_body
from proxy.overflow.wording import Meaning, Numbers, meaning_of, numbers_in

# These statuses are about the credential, the rate or the model; whatever else they say, the prompt is not to blame.
_NEVER = frozenset({401, 402, 403, 404, 405, 408, 409, 410, 429})

_ERROR = re.compile(rb'error(?!"\s*:\s*null)')  # normal replies of the Responses API say "error": null


class RefusedPart(StrEnum):
    """The part of a request that does not fit."""

    INPUT = "input"
    OUTPUT = "output"


class Refusal(NamedTuple):
    """A request that does not fit; all numbers are in tokens of the upstream, None if it does not say."""

    kind: RefusedPart
    window: int | None = None
    """The context length."""
    prompt_tokens: int | None = None
    """The length of the prompt."""
    reply_tokens: int | None = None
    """The length of the reply that was asked for."""


def recognise(
    status: int, body: bytes, clean: Callable[[str], str] | None = None, *, answer: re.Pattern[bytes]
) -> Refusal | None:
    """The refusal in a reply with this status and body; None if the reply does not refuse the request for its size.

    A reply with a status below 400 is one only if its body, or its event, is an error; `answer` matches what has an
    answer in it (`Endpoint.answer`). With `clean` only what that leaves of the body's texts is read.
    """
    if status in _NEVER:
        return None
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return Refusal(RefusedPart.INPUT)
    if status < HTTPStatus.MULTIPLE_CHOICES and not _ERROR.search(body) and answer.search(body):
        return None  # a normal reply, as nearly all are: there is nothing to read
    content = read_body(body)
    if status < HTTPStatus.BAD_REQUEST and not is_error(content, has_answer=answer.search(body) is not None):
        return None
    content = content.cleaned(clean) if clean else content
    meaning = meaning_of(content)
    return None if meaning is None else _classify(meaning, numbers_in(content))


def _classify(meaning: Meaning, numbers: Numbers) -> Refusal:
    """Classifies a refusal of prompt and reply together: it is one of the reply if the prompt is a small part."""
    window, prompt, reply = numbers
    is_all_reply = (
        window
        and reply
        and (reply >= window or (prompt is not None and reply > window * 3 // 4 and prompt <= window // 4))
    )
    if meaning is Meaning.OUTPUT or is_all_reply:
        return Refusal(RefusedPart.OUTPUT, reply_tokens=reply)
    return Refusal(RefusedPart.INPUT, window, prompt, reply)


__all__ = ["Refusal", "RefusedPart", "recognise"]
