"""How a reply ends: what it is recognised by when a client has rewritten the message that it answers. Pure.

Clients send a reply back in many forms: trimmed, without its thinking, as parts. Its end outlives that, so the last
characters behind its thinking that are no white space stand for it, as a digest. They are read off the reply's last
bytes once it has come whole, from its end on: of a long stream only its last events are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from proxy.request.loose_json import json_or_none

ENOUGH = 64  # characters
_THOUGHT = re.compile(r"</think(?:ing)?>")
_MARGIN = 16  # characters; a mark that ends the thinking just before the end is found whole
_DATA, _DONE = b"data:", b"[DONE]"
_CONTENT = re.compile(rb'"content"\s*:\s*("(?:[^"\\]|\\.)*")')
_PROBE = b"no model says this"
_DECODER = json.JSONDecoder()


def ending(text: str) -> str:
    """The digest of a text's end, in hex; "" for a text without any characters."""
    end = "".join(_THOUGHT.split(text)[-1].split())[-ENOUGH:]
    return blake2b(end.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if end else ""


def ending_of(data: bytes, *, whole: bool) -> str:
    """The ending of a chat completion's text, streamed or in one piece, from its last bytes; `whole`: these are all.

    It is "" where that cannot be told: of several choices, of none, of a text that is too long for its last bytes.
    """
    if data.lstrip()[:1] == b"{":
        return ending(_text(json_or_none(data), "message") or "") if whole else ""
    lines = data.split(b"\n")
    first = 0 if whole else 1
    events = _Events()
    pieces: list[str] = []
    missing = ENOUGH + _MARGIN
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
    return ending("".join(reversed(pieces))) if whole or missing <= 0 else ""


class _Events:
    """The texts of a stream's events, whose bytes mostly differ in nothing else.

    Of what stands between the same bytes as one text did, only that is read: it costs a quarter of the whole event.
    """

    def __init__(self) -> None:
        self._around: tuple[bytes, bytes] | None = None
        self._has_looked = False

    def text(self, event: bytes) -> str | None:
        """The text of an event's only choice, as `_text` gives it."""
        if self._around is not None and (said := _said(event, *self._around)) is not None:
            return said
        text = _text(json_or_none(event), "delta")
        if text and not self._has_looked:
            self._has_looked, self._around = True, _around(event)
        return text


def _around(event: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and behind an event's text; None where the text is not found."""
    if (found := _CONTENT.search(event)) is None:
        return None
    before, behind = event[: found.start(1)], event[found.end(1) :]
    is_text = _text(json_or_none(b'%b"%b"%b' % (before, _PROBE, behind)), "delta") == _PROBE.decode()
    return (before, behind) if is_text else None


def _said(event: bytes, before: bytes, behind: bytes) -> str | None:
    """The text of an event that has the same bytes around it; None where they are others."""
    if not (event.startswith(before) and event.endswith(behind)):
        return None
    try:
        literal = event[len(before) : len(event) - len(behind)].decode()
        text, end = _DECODER.raw_decode(literal)
    except (ValueError, RecursionError):
        return None
    return text if isinstance(text, str) and end == len(literal) else None


def _text(document: Any, member: str) -> str | None:
    """The text of the only choice, "" where there is no choice or no text; None where there are several."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    if not isinstance(choices, list) or len(choices) > 1:
        return None
    choice = choices[0] if choices else {}
    if not isinstance(choice, Mapping) or choice.get("index"):
        return None
    said = choice.get(member)
    content = said.get("content") if isinstance(said, Mapping) else None
    return content if isinstance(content, str) else ""
