"""Requests to an upstream, its replies, and the errors if no reply comes; the same for both HTTP clients.

An HTTP library's error says little by itself ("All connection attempts failed"), but it was raised from the system's
error. So the chain of causes is searched for the first error with a known meaning, and `sentence` states it for readers
who do not know the libraries. The upstream's answer is never quoted.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from proxy.errors import UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.quoting import printable

_ROUTES = (errno.ENETUNREACH, errno.EHOSTUNREACH)
_BROKEN_OFF = re.compile(r"(?i)disconnect|connection ?lost|clos|not completed|incomplete|readerror|writeerror")
_NOT_HTTP = re.compile(r"(?i)status line|illegal|badhttp|invalid http|transferencoding")


class UpstreamRequest(NamedTuple):
    """A request to send to an upstream: `path` and `query` as received, `body` whole or as a stream."""

    base_url: str
    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes | AsyncIterator[bytes]


class JsonReply(NamedTuple):
    """The reply to one of the proxy's own calls, read whole and decoded; `retry_after` is the value of its header."""

    status: int
    body: bytes
    retry_after: str | None = None


class UpstreamReply(Protocol):
    """A reply whose head has come; `chunks` may be iterated once."""

    status: int
    headers: Headers

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, with their content encoding; raises `UpstreamUnavailable`."""

    async def close(self) -> None:
        """Ends the call; if the reply was not read to its end, its connection is closed at once."""


MAX_READ = 16 * 1024 * 1024  # bytes of a reply in one piece that are read; a longer one is passed on as it comes


class ReadReply:
    """A reply that was read; of one that is too long only the beginning, and `rest` has what follows."""

    def __init__(
        self, status: int, headers: Headers, data: bytes, rest: tuple[UpstreamReply, AsyncIterator[bytes]] | None = None
    ) -> None:
        self.status, self.headers, self.data, self._rest = status, headers, data, rest
        if rest is None:
            self.headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
            self.headers.append((b"content-length", str(len(data)).encode()))

    @property
    def is_whole(self) -> bool:
        return self._rest is None

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.data
        if self._rest is not None:
            async for chunk in self._rest[1]:
                yield chunk

    async def close(self) -> None:
        """Ends the call, unless it is over."""
        if self._rest is not None:
            await self._rest[0].close()


async def read_whole(reply: UpstreamReply) -> ReadReply:
    """Reads a reply to its end, and closes it; of one that is too long only the beginning.

    Raises `UpstreamUnavailable`.
    """
    parts, size, chunks = [], 0, reply.chunks()
    try:
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_READ:
                return ReadReply(reply.status, reply.headers, b"".join(parts), (reply, chunks))
    except BaseException:
        await reply.close()
        raise
    await reply.close()
    return ReadReply(reply.status, reply.headers, b"".join(parts))


def unavailable(error: Exception, *, is_late: bool) -> UpstreamUnavailable:
    """The error if the upstream sent no byte in time (`is_late`), no connection was made, or it broke off.

    `error` is the HTTP library's, which loses its traceback: the library keeps its errors with a connection, and with a
    traceback they would keep the request, until all garbage is collected.
    """
    for each in _chain(error):
        each.__traceback__ = None
    if is_late:
        return UpstreamUnavailable("The upstream did not answer in time.", code="upstream_timeout")
    return UpstreamUnavailable(sentence(error))


def sentence(error: BaseException) -> str:
    chain = _chain(error)
    if cause := next(filter(None, map(_system_cause, chain)), ""):
        return f"The upstream cannot be reached: {cause}."
    texts = [f"{type(each).__name__} {each}" for each in chain]
    if any(isinstance(each, ConnectionError) for each in chain) or any(map(_BROKEN_OFF.search, texts)):
        return "The upstream broke off the connection."
    if any(map(_NOT_HTTP.search, texts)):
        return "The upstream's answer is not HTTP."
    failed = "the TLS handshake" if any(isinstance(each, ssl.SSLError) for each in chain) else "the connection"
    return f"The upstream cannot be reached: {failed} failed."


def _system_cause(error: BaseException) -> str:
    """Why no connection was made, in the words of the system or of the TLS library; "" if this error does not say."""
    match error:
        # aiohttp's errors are of these classes too, but lack their attributes, which the system's error below has.
        case ssl.SSLCertVerificationError(verify_message=str() as reason):
            return f"TLS: {printable(reason.rstrip('.'), 200)}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "TLS: wrong version number; perhaps the server speaks plain HTTP"
        case ssl.SSLError(reason=str() as reason):
            return f"TLS: {reason.lower().replace('_', ' ')}"
        case socket.gaierror():
            return "no such host"
        case ConnectionRefusedError():
            return "connection refused"
        case OSError() if error.errno in _ROUTES:
            return "no route to the host"
    return ""


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    for each in chain:  # it grows in the loop
        causes = [each.__cause__, each.__context__, *(each.exceptions if isinstance(each, BaseExceptionGroup) else ())]
        chain += [cause for cause in causes if cause is not None and cause not in chain]
    return chain
