"""What goes to an upstream and what comes back, whichever client carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers


class UpstreamRequest(NamedTuple):
    """What is sent: `path` and `query` as they came in, `body` whole or as a stream."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | AsyncIterator[bytes]

    def framed(self) -> Headers:
        """The headers, with the length of a body that is whole."""
        if isinstance(self.body, bytes) and (self.body or self.method in ("POST", "PUT", "PATCH")):
            return [*self.headers, (b"content-length", str(len(self.body)).encode())]
        return self.headers


class JsonReply(NamedTuple):
    """An answer to a call of our own, read whole and decoded; `retry_after` as its header has it."""

    status: int
    body: bytes
    retry_after: str | None = None


class UpstreamReply(Protocol):
    """An answer whose head is there; `chunks` may be iterated once."""

    status: int
    headers: Headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in, with their content encoding; raises `UpstreamUnavailable`."""
        ...

    async def close(self) -> None:
        """Ends the call; the connection of an answer that was not read to its end is closed at once."""
        ...


def late() -> UpstreamUnavailable:
    """No byte came, or room for one more connection, within its time."""
    return UpstreamUnavailable("The upstream did not answer in time.", code="upstream_timeout")


def unreachable(error: Exception) -> UpstreamUnavailable:
    """No connection, or one that broke off."""
    return UpstreamUnavailable(f"The upstream cannot be reached ({type(error).__name__}).")
