"""Requests to an upstream, its replies, and the errors for those that do not come; the same for both HTTP clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.upstream.causes import sentence


class UpstreamRequest(NamedTuple):
    """What is sent: `path` and `query` as they came in, `body` whole or as a stream."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | AsyncIterator[bytes]

    def headers_with_length(self) -> Headers:
        """The headers, with `content-length` where the body is known in whole."""
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


def timed_out() -> UpstreamUnavailable:
    """The error for an upstream that sent no byte in time, or that had no room for one more connection in time."""
    return UpstreamUnavailable("The upstream did not answer in time.", code="upstream_timeout")


def unreachable(error: Exception) -> UpstreamUnavailable:
    """The error for a connection that was not made, or that broke off; `error` is the HTTP library's."""
    return UpstreamUnavailable(sentence(error))
