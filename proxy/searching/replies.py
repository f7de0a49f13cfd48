"""Replies of the upstream that are read to their end: reading them, and the message of an error reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

from proxy.chat.loose_json import json_or_none
from proxy.errors import ProxyError
from proxy.http.headers import Headers
from proxy.upstream import UpstreamReply


class ReadReply:
    """A reply that was read to its end."""

    def __init__(self, status: int, headers: Headers, data: bytes) -> None:
        self.status = status
        self.headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        self.headers.append((b"content-length", str(len(data)).encode()))
        self.data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in one chunk."""
        yield self.data

    async def close(self) -> None:
        """Does nothing: the call is over."""


async def read_whole(reply: UpstreamReply) -> ReadReply:
    """Reads a reply to its end, and closes the call in any case; raises `UpstreamUnavailable`."""
    try:
        data = b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.close()
    return ReadReply(reply.status, reply.headers, data)


def error_reply(error: ProxyError) -> ReadReply:
    """One of our own errors as a reply."""
    return ReadReply(error.status, [(b"content-type", b"application/json")], error.to_json())


def is_good(reply: UpstreamReply) -> bool:
    """Whether the reply has a status of success."""
    return HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES


def error_in(data: bytes) -> tuple[str, str | None]:
    """The message and the code of an error reply in OpenAI's form, as far as it has them."""
    body = json_or_none(data)
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "no message", None
    code = error.get("code")
    return str(error.get("message")), code if isinstance(code, str) else None
