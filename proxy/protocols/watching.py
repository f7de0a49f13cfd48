"""Reads the usage and the ending of a reply while it is relayed.

No event is parsed. The usage is at the end of a reply, with some servers at its beginning. So the first and
the last bytes are kept, and searched once at the end of the reply. The key `"usage"` cannot be mistaken: inside a text
its quotation marks would be escaped.

If the proxy has asked for the usage of a stream and the client has not, the usage event is removed.
"""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

from proxy.http.encodings import Decoder, NotDecodable, decoder_for
from proxy.http.headers import Headers, encoding_of
from proxy.http.sse import EventEditor, Events, data_of
from proxy.protocols.endpoint import Endpoint
from proxy.protocols.replies import Capture, Items, Usage, ending_in, usage_in
from proxy.servers.refusals import NO_REFUSAL, Refusal, Unit, read
from proxy.values import json_or_none

MAX_HELD = 16 * 1024 * 1024
"""The longest reply in bytes that is stored; one that must be settled and comes in one piece is held back as long."""
HEAD, TAIL = 4 * 1024, 64 * 1024  # bytes
MAX_ERROR, NEWEST = 16 * 1024, 4  # bytes, and events, at the end of a reply in which an error is looked for
OK = 200

_KEY, _DONE, NEAR_END = b'"usage"', b"data: [DONE]", 64
_USAGE = re.compile(r'"usage"\s*:\s*(?=\{)')
_DECODER = json.JSONDecoder()
_STEPS = re.compile(
    rb'"type"\s*:\s*"(?:server_tool_use|(?:web_search|file_search|code_interpreter|image_generation|mcp)_call)"'
)
"""A call that the server itself has run. Inside a text its quotation marks would be escaped."""


class WatchedReply:
    """Takes in the bytes of a reply in any form. A `capture` collects what the model says.

    A reply in an encoding that cannot be decoded has no usage and no ending.
    """

    def __init__(self, endpoint: Endpoint, headers: Headers, capture: Capture | None = None) -> None:
        encoding = encoding_of(headers)
        self._endpoint = endpoint
        self._decoder = decoder_for(encoding) if encoding else None
        self._is_readable = not encoding or self._decoder is not None
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._kept = self._size = 0
        self._capture = capture
        self._captured = 0

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes, and keeps the first and the last ones so far."""
        plain = chunk if self._decoder is None else self._decoded(self._decoder, chunk)
        if self._is_readable:
            if len(self._head) < HEAD:
                self._head += plain[: HEAD - len(self._head)]
            self._tail.append(plain)
            self._kept += len(plain)
            self._size += len(plain)
            while self._kept - len(self._tail[0]) >= TAIL:
                self._kept -= len(self._tail.popleft())
        if self._capture is not None:
            self._captured += len(chunk)
            self._capture.feed(chunk)
            if self._captured > MAX_HELD:
                self._capture = None

    def _decoded(self, decoder: Decoder, chunk: bytes) -> bytes:
        try:
            return decoder.feed(chunk)
        except NotDecodable:
            self._is_readable, self._decoder = False, None
            return b""

    def items(self) -> Items:
        """What the model said, if there is a capture and the reply is complete and not too large; else empty."""
        return self._capture.items() if self._capture is not None else ()

    @property
    def is_answer(self) -> bool:
        """Whether the reply has the endpoint's own form, unlike a page or the answer of a health check."""
        return self._endpoint.answer.search(self._head) is not None

    def ending(self) -> str:
        """The digest of the end of the reply's text; "" if its last bytes do not show it."""
        tail = b"".join(self._tail)
        return ending_in(tail, self._endpoint.text_places, is_complete=self._kept == self._size)

    def refusal(self) -> Refusal:
        """The error at the end of a reply under a good status, if it refuses the prompt for its length."""
        ends = b"".join(self._tail)[-MAX_ERROR:].replace(b"\r\n", b"\n").split(b"\n\n")[-NEWEST:]
        for event in ends:
            if b"error" in event and (found := read(OK, event, answer=self._endpoint.answer)).size(Unit.PROMPT):
                return found
        return NO_REFUSAL

    @property
    def has_ended_well(self) -> bool:
        """Whether it is a stream of chat that has come to its end without an error."""
        tail = b"".join(self._tail)
        return _DONE in tail[-NEAR_END:] and b'"error"' not in tail

    def usage(self) -> Usage | None:
        """The last usage in the reply, or None. A server that has run a tool may add up its steps."""
        known: dict[str, Any] = {}
        ends = (b"".join(self._tail), self._head)
        for part in ends:
            text = part.decode("utf-8", "replace")
            at = len(text)
            while (at := text.rfind('"usage"', 0, at)) >= 0:
                # Events of some streams complete each other: the first has the prompt, the last the reply.
                known = {**_counts_at(text, at), **known}
                if usage := usage_in(known):
                    has_steps = usage.first is None and _STEPS.search(ends[0] + ends[1])
                    return usage._replace(first=0) if has_steps else usage
        return None


def _counts_at(text: str, at: int) -> dict[str, Any]:
    """The usage at a place of a text, without members that are 0 or null; empty if there is none."""
    found = _USAGE.match(text, at)
    try:
        value = _DECODER.raw_decode(text, found.end())[0] if found else {}
    except (ValueError, RecursionError):
        return {}
    return {key: count for key, count in value.items() if count}


# -- editing ---------------------------------------------------------------------------------------------------


class UsageRemover(EventEditor):
    """Removes the usage event of a stream; other events pass as soon as they are complete."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._events = Events()

    def _held_bytes(self) -> int:
        return self._events.size

    def _edit(self, chunk: bytes) -> bytes:
        return b"".join([b"".join(lines) for lines in self._events.feed(chunk) if not self._is_usage(data_of(lines))])

    def _is_usage(self, data: bytes) -> bool:
        return _KEY in data and self._endpoint.is_usage_alone(json_or_none(data))

    def _release(self) -> bytes:
        return self._events.rest()

    def end(self) -> bytes:
        return self._release()
