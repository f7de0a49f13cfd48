"""What is read of a reply while it is relayed: its usage, its ending, and in append mode its message."""

from __future__ import annotations

from typing import Any

from proxy.http.headers import Headers, first
from proxy.reply.capture import Capture
from proxy.reply.relay import MAX_HELD
from proxy.reply.usage import UsageReader


class WatchedReply:
    """Takes in a reply's bytes for its usage and, with a `capture`, for its message."""

    def __init__(self, headers: Headers, capture: Capture | None) -> None:
        self.headers = headers
        self.usage = UsageReader(first(headers, b"content-encoding") or "")
        self._capture = capture
        self._captured = 0

    def feed(self, chunk: bytes) -> None:
        """Takes in the next bytes."""
        self.usage.feed(chunk)
        if self._capture is not None:
            self._captured += len(chunk)
            self._capture.feed(chunk)
            if self._captured > MAX_HELD:
                self._capture = None

    def message(self) -> dict[str, Any] | None:
        """The assistant's message, if there is a capture and the reply is complete and not too large."""
        return self._capture.message() if self._capture is not None else None
