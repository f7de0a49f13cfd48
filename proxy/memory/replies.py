"""Replies of an upstream as memory takes them: whether one is good, read whole, and what an error says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus

from proxy.errors import ProxyError
from proxy.http.headers import Headers
from proxy.reply.opening import UpstreamAnswer
from proxy.request.loose_json import json_or_none


class ReadReply:
    """A reply that was read whole."""

    def __init__(self, status: int, headers: Headers, data: bytes) -> None:
        self.status = status
        self.headers = [pair for pair in headers if pair[0].lower() != b"content-length"]
        self.headers.append((b"content-length", str(len(data)).encode()))
        self.data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body."""
        yield self.data

    async def close(self) -> None:
        """Nothing is open any more."""


async def read(reply: UpstreamAnswer) -> ReadReply:
    """A reply read to its end; raises `UpstreamUnavailable`. The call is over then, however it ends."""
    try:
        data = b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.close()
    return ReadReply(reply.status, reply.headers, data)


def reply_of(error: ProxyError) -> ReadReply:
    """An error of ours as a reply."""
    return ReadReply(error.status, [(b"content-type", b"application/json")], error.to_json())


def is_good(reply: UpstreamAnswer) -> bool:
    """Whether its status is one of success."""
    return HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES


def said(data: bytes) -> tuple[str, str | None]:
    """The message and the code of an error in OpenAI's form, as far as it has them."""
    body = json_or_none(data)
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "no message", None
    code = error.get("code")
    return str(error.get("message")), code if isinstance(code, str) else None
