"""Opens the body of an error: all texts, codes and numbers in it, however deeply they are wrapped. No I/O.

A gateway puts the provider's body into its own: as an object, as JSON in a string, as text with a prefix. Servers send
objects, arrays, bare strings and events. Quotations of the request are skipped, so that a conversation about context
lengths is not mistaken for an error about one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.values import json_or_none

_ERROR = re.compile(rb'(?<!\\)"errors?"(?!\s{0,9}:\s{0,9}null)|^event:\s{0,9}error', re.MULTILINE)
"""A key, a value or an event. A text may say "error" too: its quotation marks are escaped. Null is no error."""

MAX_TEXT, MAX_TEXTS = 8_000, 16_000  # characters that are read of one text, and of all; errors come to the point early
DEEPEST = 32

# Members in which validators and gateways quote the request, the reply or themselves.
_QUOTED = frozenset(
    """
    input inputs messages prompt prompts body request content contents tools choices delta output text arguments
    failed_generation generated_text headers stack stacktrace traceback url user
    """.split()  # noqa: SIM905 - a table of words
)
_CODES = frozenset(("code", "type", "error_type", "error_code", "status", "reason", "name", "errorcode", "__type"))
_EVENT = re.compile(r"^data:[ ]?(.*)", re.MULTILINE)
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
