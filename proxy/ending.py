"""How a reply ends: what it is recognised by when a client has rewritten the message that it answers. Pure.

Clients send a reply back in many forms: trimmed, without its thinking, as parts. Its end outlives that, so the last
characters behind its thinking that are no white space stand for it, as a digest. They are read off the reply's last
bytes once it has come whole, from its end on: of a long stream only its last events are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from proxy.loose_json import json_or_none

ENOUGH = 64  # characters
_THOUGHT = re.compile(r"</think(?:ing)?>")
_MARGIN = 16  # characters; a mark that ends the thinking just before the end is found whole
_DATA, _DONE = b"data:", b"[DONE]"


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
    pieces: list[str] = []
    missing = ENOUGH + _MARGIN
    for line in map(bytes.strip, reversed(lines[first:])):
        if not line.startswith(_DATA) or line.endswith(_DONE):
            continue
        piece = _text(json_or_none(line.removeprefix(_DATA)), "delta")
        if piece is None:
            return ""
        pieces.append(piece)
        missing -= len("".join(piece.split()))
        if missing <= 0:
            break
    return ending("".join(reversed(pieces))) if whole or missing <= 0 else ""


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
