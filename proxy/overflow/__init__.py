"""Recognises an upstream's error that a prompt does not fit, and reads the numbers in it. No I/O.

Every server words this differently. It is recognised in two steps: first all texts, codes and numbers of the body are
collected, however deeply they are wrapped; then `wording` finds what they mean.

A gateway puts the provider's body into its own: as an object, as JSON in a string, as text with a prefix. Servers send
objects, arrays, bare strings and events. Quotations of the request are skipped, so that a conversation about context
lengths is not mistaken for an overflow. A quotation may stand in any text, so a window whose number is in the request
is not believed (`Refusal.without_quoted`).

    input overflow    the prompt is too long: condensing it helps, and a window that is named is the true one
    output cap        a longer reply is asked for than the model ever writes: no prompt is short enough
    anything else     None: rate limits, budgets, too many images, a body that is too large in bytes, broken requests

In doubt the result is None: the client then gets the upstream's own error, as if there were no proxy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.overflow.wording import RefusedPart, numbers_in, refused_part
from proxy.values import json_or_none

__all__ = ["Refusal", "RefusedPart", "is_error_body", "read_body", "recognise"]

# These statuses are about the credential, the rate or the model, never about the length of the prompt.
_NEVER = frozenset({401, 402, 403, 404, 405, 408, 409, 410, 429})

_SERVER_ERROR = re.compile("5[0-9]{2}")
_ERROR = re.compile(rb'error(?!"\s*:\s*null)')  # normal replies of the Responses API say "error": null


class Refusal(NamedTuple):
    """A request that does not fit; all numbers are tokens as the upstream counts them, None if it states none."""

    kind: RefusedPart
    window: int | None = None  # the context length
    prompt_tokens: int | None = None  # the length of the prompt
    reply_tokens: int | None = None  # the length of the reply that was asked for
    is_server_error: bool = False  # whether the server gives itself the blame, by a status or a code of 500 or more
    is_silent: bool = False  # whether it has no words, so that a gateway may have refused the bytes

    def without_quoted(self, request: bytes) -> Refusal:
        """The refusal without a window whose number stands in the refused request, because the error may quote it."""
        window = self.window
        is_quoted = window is not None and any(f"{window:{form}}".encode() in request for form in ("d", ","))
        return self._replace(window=None) if is_quoted else self


def recognise(status: int, body: bytes, *, answer: re.Pattern[bytes]) -> Refusal | None:
    """The refusal in a reply with this status and body; None if the reply does not refuse the request for its size.

    A reply with a status below 400 is a refusal only if its body, or its event, is an error; `answer` is that of the
    endpoint (`Endpoint.answer`).
    """
    if status in _NEVER:
        return None
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not body.strip():
        return Refusal(RefusedPart.INPUT, is_silent=True)
    if status < HTTPStatus.BAD_REQUEST and not is_error_body(body, answer=answer):
        return None
    content = read_body(body)
    part = refused_part(content.codes, content.texts)
    if part is None:
        return None
    window, prompt, reply = numbers_in(content.numbers, content.texts)
    # If prompt and reply together are refused and the prompt is a small part, the reply is to blame.
    if part is RefusedPart.OUTPUT or _is_mostly_reply(window, prompt, reply):
        return Refusal(RefusedPart.OUTPUT, reply_tokens=reply)
    # An event of a stream has its status in the error.
    blamed = {str(status)} if status >= HTTPStatus.BAD_REQUEST else content.codes
    return Refusal(RefusedPart.INPUT, window, prompt, reply, any(map(_SERVER_ERROR.fullmatch, blamed)))


def _is_mostly_reply(window: int | None, prompt: int | None, reply: int | None) -> bool:
    if not window or not reply:
        return False
    return reply >= window or (prompt is not None and reply > window * 3 // 4 and prompt <= window // 4)


# -- what a body says ------------------------------------------------------------------------------------

MAX_TEXT, MAX_TEXTS = 8_000, 16_000  # characters that are read of one text, and of all; errors come to the point early
DEEPEST = 32

# Members in which validators and gateways quote the request, the reply or themselves.
_QUOTED = frozenset(
    """
    input inputs messages prompt prompts body request content contents tools choices delta output text arguments
    failed_generation generated_text headers stack stacktrace traceback url loc user
    """.split()  # noqa: SIM905 - a table of words
)
_CODES = frozenset(("code", "type", "error_type", "error_code", "status", "reason", "name", "errorcode", "__type"))
_EVENT = re.compile(r"^data:[ ]?(.*)$", re.MULTILINE)
_MARKS = re.compile(r"[`'\"*\\“”‘’]+")


@dataclass(frozen=True, slots=True)
class BodyContent:
    """The content of a body, in lower case. Its texts have no quotation marks and no runs of white space."""

    texts: tuple[str, ...]
    codes: frozenset[str]
    numbers: Mapping[str, int]
    document: Any
    event: str = ""


def read_body(body: bytes) -> BodyContent:
    """Reads a body of any form; a body that is not JSON is one text."""
    text = body.decode("utf-8", "replace").strip()
    document, event = _document(text)
    texts: list[str] = []
    left = MAX_TEXTS
    codes: set[str] = set()
    numbers: dict[str, int] = {}
    for key, value in _leaves(document, "", DEEPEST):
        match value:
            case bool():
                continue
            case int():
                numbers.setdefault(key, value)
                if key in _CODES:
                    codes.add(str(value))
            case str() if key in _CODES and " " not in value.strip():
                codes.add(value.strip().lower())
            case str() if left > 0:
                texts.append(plain(value))
                left -= len(texts[-1])
    return BodyContent(tuple(filter(None, texts)), frozenset(codes), numbers, document, event)


def is_error_body(body: bytes, *, answer: re.Pattern[bytes]) -> bool:
    """Whether a body, or an event, is an error although its status is one of success.

    `answer` is that of the endpoint (`Endpoint.answer`).
    """
    has_answer = answer.search(body) is not None
    if has_answer and not _ERROR.search(body):
        return False  # part of a normal reply, as nearly always
    content = read_body(body)
    document = content.document
    if content.event == "error":
        return True
    if not isinstance(document, Mapping):
        return False
    if document.get("error") or document.get("errors") or "error" in (document.get("type"), document.get("object")):
        return True
    envelope = document.get("base_resp")
    has_failed = isinstance(envelope, Mapping) and bool(envelope.get("status_code"))
    return not has_answer and (has_failed or any(key in document for key in ("detail", "message", "error_msg")))


def plain(text: str) -> str:
    """A text in the form that the patterns expect."""
    return " ".join(_MARKS.sub("", text[:MAX_TEXT]).split()).lower()


def _document(text: str) -> tuple[Any, str]:
    """The JSON value of a body, and the name of the event if it is one."""
    parsed = json_or_none(text)
    if parsed is not None:
        return _opened(parsed), ""
    events = _EVENT.findall(text) if text.startswith(("data:", "event:", ":", "id:", "retry:")) else []
    if not events:
        return text, ""
    values = [_opened(found) for each in events if (found := json_or_none(each)) is not None]
    failed = (value for value in values if isinstance(value, Mapping) and value.get("error"))
    value = next(failed, values[0] if values else None)
    name = "error" if re.search(r"^event:[ ]?error\s*$", text, re.MULTILINE) else ""
    return ("\n".join(events) if value is None else value), name


def _opened(value: Any) -> Any:
    """An event; if it holds a failed response, only its error, because the rest repeats the request's instructions."""
    response = value.get("response") if isinstance(value, Mapping) and value.get("type") == "response.failed" else None
    return {"error": response.get("error")} if isinstance(response, Mapping) else value


def _leaves(value: Any, key: str, depth: int) -> Iterator[tuple[str, Any]]:
    """All strings and numbers, each with its key; JSON inside strings is read too."""
    if depth == 0:
        return
    match value:
        case Mapping():
            for name, inner in value.items():
                if str(name).lower() not in _QUOTED or isinstance(inner, int):
                    yield from _leaves(inner, str(name).lower(), depth - 1)
        case list():
            for inner in value:
                yield from _leaves(inner, key, depth - 1)
        case str():
            nested = json_or_none(value) if value.lstrip()[:1] in ("{", "[") else None
            yield from [(key, value)] if nested is None else _leaves(nested, key, depth - 1)
        case int():
            yield key, value
