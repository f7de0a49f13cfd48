"""The usage that an upstream reports, read beside the relay.

No event is decoded for it. A usage stands at the end of a reply, in some servers at its beginning, so the first and the
last bytes are kept and searched once, when all has come. Its key cannot be mistaken: inside of a text its quotation
marks would be escaped.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxy.http.content_encoding import decoder
from proxy.reply.ending import ending_of
from proxy.request.loose_json import count_at

HEAD, TAIL = 4 * 1024, 64 * 1024  # bytes
_KEY = '"usage"'
_USAGE = re.compile(_KEY + r"\s*:\s*(?=\{)")
_DECODER = json.JSONDecoder()


class Usage(NamedTuple):
    """Tokens as an upstream counts them: of the prompt, `cached` ones among them, and of the reply."""

    prompt: int
    completion: int = 0
    cached: int = 0


class UsageReader:
    """Takes in a reply of any form; `encoding` is its content encoding. What it cannot decode has no usage."""

    def __init__(self, encoding: str = "") -> None:
        self._decoder = decoder(encoding)
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
        """The beginning of the reply."""
        return self._head.decode("utf-8", "replace")

    def ending(self) -> str:
        """How the text of the reply ends; "" where its last bytes do not tell."""
        tail = b"".join(self._tail)
        return ending_of(tail, whole=self._kept == self._size)

    def usage(self) -> Usage | None:
        """The last usage of the reply; None where there is none."""
        tail = b"".join(self._tail).decode("utf-8", "replace")
        return _last_usage(tail) or _last_usage(self.head)


def usage_in(value: Any) -> Usage | None:
    """The usage in its JSON form, of OpenAI's API or of Anthropic's; None where it says nothing of a prompt.

    Anthropic's counts what came from a cache, or went into one, apart.
    """
    if not isinstance(value, Mapping):
        return None
    cached = count_at(value.get("prompt_tokens_details"), "cached_tokens") or count_at(value, "prompt_cache_hit_tokens")
    completion = count_at(value, "completion_tokens") or count_at(value, "output_tokens")
    if prompt := count_at(value, "prompt_tokens"):
        return Usage(prompt, completion, cached)
    read, written = count_at(value, "cache_read_input_tokens"), count_at(value, "cache_creation_input_tokens")
    prompt = count_at(value, "input_tokens") + read + written
    return Usage(prompt, completion, read) if prompt else None


def _last_usage(text: str) -> Usage | None:
    at = len(text)
    while (at := text.rfind(_KEY, 0, at)) >= 0:
        if found := _USAGE.match(text, at):
            try:
                value, _ = _DECODER.raw_decode(text, found.end())
            except (ValueError, RecursionError):
                continue
            if usage := usage_in(value):
                return usage
    return None
