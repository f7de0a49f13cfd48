"""What replies of all protocols have in common: a usage, the ending of a text, and the capture of a reply.

Ending. A digest of the end of the text recognises a reply that a client has rewritten. Clients send a reply back in
many forms: trimmed, without its thinking, or as content parts. Its end survives that, so the digest is made of the last
characters after the thinking, without white space. It is computed once the reply is complete, backwards from its last
bytes, so that only the last events of a long stream are parsed.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.http.sse import EventReader
from proxy.servers.error_bodies import read_body
from proxy.values import MOST_COUNTED, count_at, json_or_none, list_at, object_at, word_at

ENDING_LENGTH = 64  # characters
_THOUGHT = re.compile(r"</think(?:ing)?>")
_MARGIN = 16  # characters; enough for a tag that ends the thinking just before the ending
_DATA, _DONE = b"data:", b"[DONE]"
_PROBE = b"no model says this"
_DECODER = json.JSONDecoder()

Json = dict[str, Any]
Items = Sequence[Mapping[str, Any]]  # elements of a message list


def named_event(body: Mapping[str, Any]) -> bytes:
    """An event whose name is its `type`."""
    return f"event: {body['type']}\ndata: {json.dumps(body)}\n\n".encode()


class Usage(NamedTuple):
    """Tokens as the upstream counts them: of prompt and reply, and those of the prompt from and to a cache."""

    prompt: int
    completion: int = 0
    cached: int = 0
    written: int = 0
    first: int | None = None
    """Those of the prompt that was sent, if the server ran a tool, which adds a step; 0 if only all steps are told."""


def usage_in(value: Any) -> Usage | None:
    """Reads a usage in the form of any protocol; None if it gives no prompt tokens.

    Every form is read everywhere, because servers mix them. Anthropic's prompt tokens do not include those read from a
    cache or written to one; OpenAI's do, but at some gateways not: more cached tokens than prompt tokens prove it. The
    first step of a reply has read what was sent, unless it is a compaction.
    """
    if not isinstance(value, Mapping):
        return None
    # As `count_at` reads them, all at once: each reply has such a usage.
    counts = {key: n for key, n in value.items() if isinstance(n, int) and n is not True and 0 < n <= MOST_COUNTED}
    details = [value[key] for key in ("prompt_tokens_details", "input_tokens_details") if value.get(key)]
    in_details = next(filter(None, [count_at(each, "cached_tokens") for each in details]), 0)
    cached = in_details or counts.get("prompt_cache_hit_tokens", 0)
    written = next(filter(None, [count_at(each, "cache_write_tokens") for each in details]), 0)
    completion = counts.get("completion_tokens") or counts.get("output_tokens", 0)
    if not (prompt := counts.get("prompt_tokens", 0)):
        read, created = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        prompt, cached, written = counts.get("input_tokens", 0) + read + created, read or cached, created or written
    prompt += cached if cached > prompt else 0
    first = _first_of(value) if "iterations" in value or "server_tool_use" in value else None
    return Usage(prompt, completion, cached, written, first) if prompt else None


def _first_of(usage: Mapping[str, Any]) -> int | None:
    """The prompt tokens of the first step, by a usage that lists the steps or counts the tools that the server ran."""
    if steps := list_at(usage, "iterations"):
        step = usage_in(steps[0]) if word_at(steps[0], "type") in ("", "message") else None
        return step.prompt if step else 0
    return 0 if any(count_at(usage["server_tool_use"], name) for name in object_at(usage, "server_tool_use")) else None


def tokens_in(usage: Any) -> int:
    """All tokens of a call, as its usage reports them; 0 if it does not."""
    if total := count_at(usage, "total_tokens"):
        return total
    counts = usage_in(usage)
    return counts.prompt + counts.completion if counts else count_at(usage, "completion_tokens")


class Capture(ABC):
    """Reads the bytes of one reply, and keeps what the model said."""

    @abstractmethod
    def feed(self, chunk: bytes) -> None:
        """Reads the next bytes."""

    @abstractmethod
    def items(self) -> Items:
        """The elements of the reply, as a client would send them back; empty if the reply is not complete."""


@dataclass
class JsonCapture(Capture):
    """Captures a reply in one piece; `items_in` reads the elements from its document."""

    items_in: Callable[[Any], Items]
    _chunks: list[bytes] = field(default_factory=list)

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def items(self) -> Items:
        return self.items_in(json_or_none(b"".join(self._chunks)))


@dataclass(slots=True)
class StreamCapture(Capture):
    """Captures a streamed reply."""

    _events: EventReader = field(default_factory=EventReader)

    def feed(self, chunk: bytes) -> None:
        for data in self._events.feed(chunk):
            self._add(data)

    @abstractmethod
    def _add(self, data: str) -> None:
        """Reads the data of the next event."""


# -- the ending of a text ----------------------------------------------------------------------------------------


class TextPlaces(NamedTuple):
    """Where a protocol's replies have their text.

    The functions return "" if the document has no text, and None if it makes the ending of the reply unknowable.
    """

    member: bytes  # the member that holds a piece of the text in an event
    in_reply: Callable[[Any], str | None]  # returns the text of a reply in one piece
    in_event: Callable[[Any], str | None]  # returns the piece of the text in an event


def ending(text: str) -> str:
    """The digest of the end of a text, in hex, by which a later request is recognised; "" for white space only."""
    end = "".join(_THOUGHT.split(text)[-1].split())[-ENDING_LENGTH:]
    return blake2b(end.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if end else ""


def ending_in(data: bytes, places: TextPlaces, *, is_complete: bool) -> str:
    """The ending of a reply, streamed or in one piece, from its last bytes, or all of them if `is_complete`.

    It is "" if it cannot be determined, for example because the bytes do not reach back far enough.
    """
    if data.lstrip()[:1] == b"{":
        return ending(places.in_reply(json_or_none(data)) or "") if is_complete else ""
    lines = data.split(b"\n")
    first = 0 if is_complete else 1
    events = _Events(places)
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


@dataclass(slots=True)
class _Events:
    """Reads the texts of a stream's events, most of which differ only in the text.

    If an event has the same bytes before and after its text as an earlier one, only its text is parsed, which takes a
    quarter of the time.
    """

    places: TextPlaces
    frame: tuple[bytes, bytes] | None = None
    has_looked: bool = False

    def text(self, event: bytes) -> str | None:
        if self.frame is not None and (framed := _text_within(event, *self.frame)) is not None:
            return framed
        text = self.places.in_event(json_or_none(event))
        if text and not self.has_looked:
            self.has_looked, self.frame = True, self._frame_of(event)
        return text

    def _frame_of(self, event: bytes) -> tuple[bytes, bytes] | None:
        """The bytes before and after the text of an event; None if the text is not found."""
        match = re.search(rb'"%b"\s*:\s*("(?:[^"\\]|\\.)*")' % self.places.member, event)
        if match is None:
            return None
        before, after = event[: match.start(1)], event[match.end(1) :]
        # It may be another member with that name. A probe put in its place must be read as the event's text.
        read = self.places.in_event(json_or_none(b'%b"%b"%b' % (before, _PROBE, after)))
        return (before, after) if read == _PROBE.decode() else None


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


# -- a window that was exceeded -----------------------------------------------------------------------------

_RAN_OUT = re.compile(rb'"(?:finish_reason|stop_reason|reason)"\s*:\s*"model_context_window_exceeded"')
_UNSAID = frozenset(("reasoning", "instructions", "tools", "metadata", "input"))
"""Types and members of a reply that are not what the model says."""


def ran_out_empty(body: bytes) -> bool:
    """Whether a reply, or an event of one, ends without a word because the window was exceeded."""
    return _RAN_OUT.search(body) is not None and not _says_anything(read_body(body).document)


def _says_anything(value: Any) -> bool:
    """Whether a reply or an event has text or calls of the model."""
    match value:
        case Mapping():
            kind = str(value.get("type"))
            if kind.endswith(("_call", "tool_use")) or value.get("tool_calls") or value.get("function_call"):
                return True
            said = (inner for key, inner in value.items() if key not in _UNSAID and kind not in _UNSAID)
            texts = (value.get(key) for key in ("content", "text", "refusal") if kind not in _UNSAID)
            return any(isinstance(text, str) and text for text in texts) or any(map(_says_anything, said))
        case list():
            return any(map(_says_anything, value))
    return False
