"""The ending of a reply: a digest that recognises it when a client has rewritten the message that it answers. Pure.

Clients send a reply back in many forms: trimmed, without its thinking, or as content parts. Its end survives that, so
the digest is made of its last characters after the thinking, without white space. It is computed from the reply's last
bytes once the reply is complete, backwards from its end, so that only the last events of a long stream are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from proxy.chat.ending import ENDING_LENGTH, ending
from proxy.chat.loose_json import json_or_none

_MARGIN = 16  # characters; enough to find the whole of a tag that ends the thinking just before the ending
_DATA, _DONE = b"data:", b"[DONE]"
_CONTENT = re.compile(rb'"content"\s*:\s*("(?:[^"\\]|\\.)*")')
_PROBE = b"no model says this"
_DECODER = json.JSONDecoder()


def ending_of(data: bytes, *, is_complete: bool) -> str:
    """The ending of a chat completion, streamed or in one piece, from its last bytes, or all if `is_complete`.

    It is "" if it cannot be determined: if there are several choices or none, or the bytes do not reach back enough.
    """
    if data.lstrip()[:1] == b"{":
        return ending(_text(json_or_none(data), "message") or "") if is_complete else ""
    lines = data.split(b"\n")
    first = 0 if is_complete else 1
    events = _Events()
    pieces: list[str] = []
    missing = ENDING_LENGTH + _MARGIN
    for line in map(bytes.strip, reversed(lines[first:])):
        if not line.startswith(_DATA) or line.endswith(_DONE):
            continue
        piece = events.text(line.removeprefix(_DATA))
        if piece is None:
            return ""
        pieces.append(piece)
        missing -= len("".join(piece.split()))
        if missing <= 0:
            break
    return ending("".join(reversed(pieces))) if is_complete or missing <= 0 else ""


class _Events:
    """Reads the texts of a stream's events, which mostly differ in nothing but the text.

    An event with the same bytes before and after its text as an earlier one is not parsed. Only its text is read, which
    costs a quarter of parsing the event.
    """

    def __init__(self) -> None:
        self._frame: tuple[bytes, bytes] | None = None
        self._has_looked = False

    def text(self, event: bytes) -> str | None:
        """The text of the event's only choice, as `_text` gives it."""
        if self._frame is not None and (framed := _text_within(event, *self._frame)) is not None:
            return framed
        text = _text(json_or_none(event), "delta")
        if text and not self._has_looked:
            self._has_looked, self._frame = True, _frame_of(event)
        return text


def _frame_of(event: bytes) -> tuple[bytes, bytes] | None:
    """The bytes before and after the text of an event; None if the text is not found."""
    if (found := _CONTENT.search(event)) is None:
        return None
    before, after = event[: found.start(1)], event[found.end(1) :]
    # What was found may be another member `content`: a text put in its place must come out as the event's text.
    is_text = _text(json_or_none(b'%b"%b"%b' % (before, _PROBE, after)), "delta") == _PROBE.decode()
    return (before, after) if is_text else None


def _text_within(event: bytes, before: bytes, after: bytes) -> str | None:
    """The text of an event between these bytes; None if the event does not have them, or no string between them."""
    if not (event.startswith(before) and event.endswith(after)):
        return None
    try:
        literal = event[len(before) : len(event) - len(after)].decode()
        text, end = _DECODER.raw_decode(literal)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) and end == len(literal) else None


def _text(document: Any, member: str) -> str | None:
    """The text of the only choice, "" if there is no choice or no text; None if there may be several choices."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    if not isinstance(choices, list) or len(choices) > 1:
        return None
    choice = choices[0] if choices else {}
    if not isinstance(choice, Mapping) or choice.get("index"):
        return None
    message = choice.get(member)
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""
