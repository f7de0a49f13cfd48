"""Joins the replies of one request into the one that the client sees.

A model that searches its memory answers in several replies. Replies in one piece are read whole before the client gets
anything; replies in events flow on to the client while they come (`stream`).

`Following` sends the request after a hidden round. If the passages that were found make the prompt too long, it sends
the request once more with fewer of them, or with a note that there is no room. If that is refused too, or the request
is refused for any other reason, or its reply breaks off, the client must not suffer: the upstream had accepted the
client's own request. As long as the client has no text of the reply, its own request is sent again without the tool,
and the search is given up. So the client gets an error only where its own request is refused too, or where it already
has text that cannot be taken back.

A reply in one piece is checked before it is passed on. A stream flows at once; if it fails while the client has nothing
of it, `StreamedReply` asks for another one by `Following.in_place_of`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.hidden_calls import Said
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.headers import Headers, is_event_stream, is_success
from proxy.overflow import Refusal, RefusedPart, recognise
from proxy.overflow.wording import MIN_WINDOW
from proxy.reply.opening import OpenedReply, open_reply
from proxy.searching.rounds import HiddenRounds
from proxy.upstream import UpstreamReply
from proxy.values import json_or_none

SAFE = 0.95
"""The share of the upstream's limit that is used: its count and ours differ from text to text."""

Send = Callable[[bytes], Awaitable[UpstreamReply]]

Learn = Callable[[Refusal, int], object]

_log = logging.getLogger(__name__)


async def join_replies(reply: UpstreamReply, rounds: HiddenRounds, following: Following) -> UpstreamReply:
    """Reads replies in one piece and runs their searches, until one needs no other reply after it.

    Returns that one as the client gets it, or the first one that is an error or no completion, as it came.
    """
    endpoint, earlier = rounds.endpoint, list[Said]()
    while True:
        current = await read_whole(reply)
        said = endpoint.said(current.data) if is_success(current.status) else None
        if said is None:
            return current
        if rounds.runs_calls and said.calls_memory:
            await rounds.run(said)
            if not said.has_client_calls:
                rounds.add_cost(said)
                earlier.append(said)
                reply = await following.reply(text_sent=False)
                continue
        data = endpoint.joined(current.data, earlier, keeps_text=not rounds.is_given_up)
        return ReadReply(current.status, current.headers, data)


class StreamedReply:
    """Replies in events as one stream; its status and headers are those of the first reply."""

    def __init__(self, reply: UpstreamReply, rounds: HiddenRounds, following: Following) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds
        self._following = following
        self._splicer = rounds.endpoint.splicer(runs_calls=rounds.runs_calls)
        self._failed: ReadReply | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the joined body, as they come in; raises `UpstreamUnavailable`."""
        while True:
            async for passed in self._relay():
                yield passed
            if not (self._failed or self._splicer.is_continued):
                return
            await self._reply.close()
            failed, self._failed = self._failed, None
            self._reply = await self._next(failed)
            replaceable = not self._rounds.is_given_up and self._reply is not failed
            self._splicer.begin(runs_calls=self._rounds.runs_calls, replaceable=replaceable)

    async def _relay(self) -> AsyncIterator[bytes]:
        """The bytes that the client gets of one reply; hidden calls are run as soon as they are complete."""
        has_run = False
        try:
            async for chunk in self._reply.chunks():
                passed = self._splicer.feed(chunk)
                if self._splicer.has_searches and not has_run:
                    has_run = True
                    await self._rounds.run(self._splicer.said)
                if passed:
                    yield passed
                if self._splicer.failed_event:
                    self._failed = ReadReply(self.status, self.headers, self._splicer.failed_event)
                    return
                if self._splicer.is_over and self._splicer.is_continued:
                    return
        except UpstreamUnavailable as error:
            if not self._splicer.is_unanswered:
                raise
            self._failed = error_reply(self._rounds.endpoint, error)
            return
        if self._splicer.is_unanswered and not (self._splicer.is_over or self._splicer.is_continued):
            silent = UpstreamUnavailable("The upstream ended its reply before it said anything.")
            self._failed = error_reply(self._rounds.endpoint, silent)
            return
        if rest := self._splicer.rest():
            yield rest

    async def _next(self, failed: ReadReply | None) -> UpstreamReply:
        """The reply after a hidden round, or in place of one that has `failed`.

        Raises `UpstreamUnavailable` where that is an error, which ends the stream.
        """
        text_sent = self._splicer.has_sent_text
        if failed is None:
            self._rounds.add_cost(self._splicer.said)
            reply = await self._following.reply(text_sent=text_sent)
        else:
            reply = await self._following.in_place_of(failed, text_sent=text_sent)
        if is_success(reply.status):
            return reply
        error = await read_whole(reply)
        message, code = error_in(error.data)
        raise UpstreamUnavailable(f"The upstream answered {error.status} after a search: {message}", code=code)

    async def close(self) -> None:
        """Closes the call that is under way."""
        await self._reply.close()


@dataclass(slots=True)
class Following:
    """Gets the replies that follow the hidden rounds of one request.

    `send` sends a body to the upstream; `learn` is given each refusal for length, with the refused prompt's tokens by
    our own count.
    """

    rounds: HiddenRounds
    send: Send
    learn: Learn

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
            following = OpenedReply(error_reply(self.rounds.endpoint, error))
        is_reply = is_success(following.reply.status) and not following.error  # as far as its body was examined
        if text_sent or is_reply:
            return following.reply
        return await self._give_up_search(following.reply)

    async def _request(self, *, text_sent: bool) -> OpenedReply:
        reply = await self.send(self.rounds.body())
        flows = is_success(reply.status) and is_event_stream(reply.headers)
        looks = not flows and (not text_sent or self.rounds.tokens >= MIN_WINDOW)
        opened = await open_reply(self.rounds.endpoint, reply) if looks else OpenedReply(reply)
        return self._learn_from(opened)

    async def _examine(self, failed: ReadReply) -> OpenedReply:
        return self._learn_from(
            OpenedReply(failed, recognise(failed.status, failed.data, answer=self.rounds.endpoint.answer), failed.data)
        )

    def _learn_from(self, following: OpenedReply) -> OpenedReply:
        if following.refusal is not None and following.refusal.kind is RefusedPart.INPUT:
            self.learn(following.refusal, self.rounds.tokens)
        return following

    async def _retry_shorter(self, refused: OpenedReply, *, text_sent: bool) -> OpenedReply:
        """The reply to a shorter prompt where this one was refused for its length; else the refusal itself."""
        refusal = refused.refusal
        if refusal is None or refusal.kind is RefusedPart.OUTPUT:
            return refused
        try:
            if not await self.rounds.shorten(_acceptable_tokens(refusal, self.rounds.tokens)):
                return refused
        except BaseException:
            await refused.reply.close()
            raise
        await refused.reply.close()
        return await self._request(text_sent=text_sent)

    async def _give_up_search(self, refused: UpstreamReply) -> UpstreamReply:
        """The reply to the client's own request; the refusal itself where the upstream cannot be reached."""
        _log.warning("a search was given up: the upstream answered %d to what it found", refused.status)
        self.rounds.give_up()
        try:
            reply = await self.send(self.rounds.plain_body())
        except UpstreamUnavailable:
            return refused
        except BaseException:
            await refused.close()
            raise
        await refused.close()
        return reply


def _acceptable_tokens(refusal: Refusal, tokens: int) -> int | None:
    """The maximum tokens, by our count, of a request that the upstream accepts; None if its refusal has no number.

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


def error_reply(endpoint: Endpoint, error: ProxyError) -> ReadReply:
    return ReadReply(error.status, [(b"content-type", b"application/json")], endpoint.error_body(error))


def error_in(data: bytes) -> tuple[str, str | None]:
    """The message and the code of an error reply, as far as it has them where most protocols do."""
    body = json_or_none(data)
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "no message", None
    code = error.get("code")
    return str(error.get("message")), code if isinstance(code, str) else None
