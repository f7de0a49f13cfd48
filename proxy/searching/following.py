"""Sends the request that follows a hidden round, and falls back where the upstream refuses it.

If the passages that were found make the prompt too long, the request is sent once more with fewer of them, or with a
note that there is no room. If that is refused too, or the request is refused for any other reason and with any status,
or its reply breaks off, then the client must not suffer: the upstream had accepted the client's own request. As long as
the client has no text of the reply, its own request is sent again without the tool, and the search is given up. So the
client gets an error only where its own request is refused too, or where it already has text that cannot be taken back.

A reply in one piece is checked here before it is followed. A stream flows at once; if its relay sees it fail while the
client has nothing of it, it asks for another one by `Following.in_place_of`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus

from proxy.chat.loose_json import json_or_none
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.headers import Headers
from proxy.http.sse import is_event_stream
from proxy.overflow import Refusal, RefusedPart, recognise
from proxy.overflow.numbers import LEAST
from proxy.reply.opening import OpenedReply, open_reply
from proxy.searching.rounds import Rounds
from proxy.upstream import UpstreamReply

SAFE = 0.95
"""The share of the upstream's limit that we use: its count and ours differ from text to text."""

_log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[UpstreamReply]]
Learn = Callable[[Refusal, int], object]


class Following:
    """Gets the replies that follow the hidden rounds of one request.

    `send` sends a body to the upstream; `learn` is given each refusal for length, with the refused prompt's tokens by
    our own count.
    """

    def __init__(self, rounds: Rounds, send: Send, learn: Learn) -> None:
        self._rounds = rounds
        self._send = send
        self._learn = learn

    async def reply(self, *, text_sent: bool) -> UpstreamReply:
        """The next reply, or the error that the client gets; raises `UpstreamUnavailable`.

        `text_sent` says that the client has text of the reply already.
        """
        return await self._with_fallback(self._request(text_sent=text_sent), text_sent=text_sent)

    async def in_place_of(self, failed: ReadReply, *, text_sent: bool) -> UpstreamReply:
        """Another reply in place of one that has `failed` before the client had anything of it.

        Returns `failed` itself where nothing can take its place; raises `UpstreamUnavailable`.
        """
        return await self._with_fallback(self._examine(failed), text_sent=text_sent)

    async def _with_fallback(self, requested: Awaitable[OpenedReply], *, text_sent: bool) -> UpstreamReply:
        """The requested reply, or a fallback where the upstream refuses the request."""
        try:
            following = await self._retry_shorter(await requested, text_sent=text_sent)
            if not (text_sent or is_event_stream(following.reply.headers)):
                # Read to its end now: if it breaks off, the client has nothing of it, and a fallback is possible.
                following = following._replace(reply=await read_whole(following.reply))
        except UpstreamUnavailable as error:
            if text_sent:
                raise
            following = OpenedReply(error_reply(error))
        if text_sent or _is_reply(following):
            return following.reply
        return await self._give_up_search(following.reply)

    async def _request(self, *, text_sent: bool) -> OpenedReply:
        reply = await self._send(self._rounds.body())
        flows = is_good(reply) and is_event_stream(reply.headers)
        looks = not flows and (not text_sent or self._rounds.tokens >= LEAST)
        return self._learn_from(await open_reply(reply, inspect=looks))

    async def _examine(self, failed: ReadReply) -> OpenedReply:
        return self._learn_from(OpenedReply(failed, recognise(failed.status, failed.data), failed.data))

    def _learn_from(self, following: OpenedReply) -> OpenedReply:
        if following.refusal is not None and following.refusal.kind is RefusedPart.INPUT:
            self._learn(following.refusal, self._rounds.tokens)
        return following

    async def _retry_shorter(self, refused: OpenedReply, *, text_sent: bool) -> OpenedReply:
        """The reply to a shorter prompt where this one was refused for its length; else the refusal itself."""
        refusal = refused.refusal
        if refusal is None or refusal.kind is RefusedPart.OUTPUT:
            return refused
        try:
            if not await self._rounds.shorten(_acceptable_tokens(refusal, self._rounds.tokens)):
                return refused
        except BaseException:
            await refused.reply.close()
            raise
        await refused.reply.close()
        return await self._request(text_sent=text_sent)

    async def _give_up_search(self, refused: UpstreamReply) -> UpstreamReply:
        """The reply to the client's own request; the refusal itself where the upstream cannot be reached."""
        _log.warning("a search was given up: the upstream answered %d to what it found", refused.status)
        self._rounds.give_up()
        try:
            reply = await self._send(self._rounds.plain_body())
        except UpstreamUnavailable:
            return refused
        except BaseException:
            await refused.close()
            raise
        await refused.close()
        return reply


def _is_reply(following: OpenedReply) -> bool:
    """Whether the reply is no error, as far as its body was examined."""
    return is_good(following.reply) and not following.error


def _acceptable_tokens(refusal: Refusal, tokens: int) -> int | None:
    """The most tokens, by our own count, of a request that the upstream accepts; None if its refusal does not tell.

    `tokens` is our own count of the refused request.
    """
    if refusal.window is None or not refusal.prompt_tokens:
        return None
    return int(SAFE * (refusal.window - (refusal.reply_tokens or 0)) * tokens / refusal.prompt_tokens)


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
