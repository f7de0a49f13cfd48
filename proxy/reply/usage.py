"""Reads the usage that an upstream reports, while the reply is relayed.

No event is parsed for it. A usage stands at the end of a reply, with some servers at its beginning. The first and the
last bytes are therefore kept, and searched once at the end of the reply. The key `"usage"` cannot be mistaken: inside
of a text its quotation marks would be escaped.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any

from proxy.chat.usage import Usage, usage_in
from proxy.http.content_encoding import decoder_for
from proxy.reply.ending import ending_of

HEAD, TAIL = 4 * 1024, 64 * 1024  # bytes
_KEY = '"usage"'
_USAGE = re.compile(_KEY + r"\s*:\s*(?=\{)")
_DECODER = json.JSONDecoder()


class UsageReader:
    """Takes in a reply of any form; `encoding` is its content encoding. A reply that it cannot decode has no usage."""

    def __init__(self, encoding: str = "") -> None:
        self._decoder = decoder_for(encoding)
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._kept = self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        if self._decoder is None:
            return
        try:
            data = self._decoder.feed(chunk)
        except zlib.error:
            self._decoder = None
            return
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]
        self._tail.append(data)
        self._kept += len(data)
        self._size += len(data)
        while self._kept - len(self._tail[0]) >= TAIL:
            self._kept -= len(self._tail.popleft())

    @property
    def head(self) -> str:
        """The beginning of the reply, at most `HEAD` bytes of it."""
        return self._head.decode("utf-8", "replace")

    def ending(self) -> str:
        """The digest of the end of the reply's text; "" if its last bytes do not show it."""
        tail = b"".join(self._tail)
        return ending_of(tail, is_complete=self._kept == self._size)

    def usage(self) -> Usage | None:
        """The last usage in the reply, or None."""
        tail = b"".join(self._tail).decode("utf-8", "replace")
        known: dict[str, Any] = {}
        for earlier in chain(_usages(tail), _usages(self.head)):
            # Events of Anthropic's streams complete each other: the first has the prompt, the last the reply.
            known = {**earlier, **known}
            if usage := usage_in(known):
                return usage
        return None


def _usages(text: str) -> Iterator[dict[str, Any]]:
    """The usages in a text, the last one first, each without members that are 0 or null."""
    at = len(text)
    while (at := text.rfind(_KEY, 0, at)) >= 0:
        if found := _USAGE.match(text, at):
            try:
                value, _ = _DECODER.raw_decode(text, found.end())
            except (ValueError, RecursionError):
                continue
            yield {key: each for key, each in value.items() if each}
