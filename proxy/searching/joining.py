"""Joins the replies of one request into the one that the client sees.

A model that searches its memory answers in several replies. Replies in one piece are read whole before the client gets
anything; streamed replies are passed on as they come.

`Following` sends the request after a hidden round. If the passages that were found make the prompt too long, it sends
the request once more with fewer of them, or with a note that there is no room. If that is refused too, or the request
is refused for another reason, or the reply breaks off, the client must not suffer, because the upstream accepted the
client's own request. As long as the client has no text of the reply, its own request is sent again without the tool,
and the search is given up. So the client gets an error only if its own request is refused too, or if it already has
text that cannot be taken back.

A reply in one piece is checked before it is passed on. A stream is passed on at once; if it fails while the client has
nothing of it, `StreamedReply` asks `Following` for another one in its place.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.hidden_calls import Said
from proxy.errors import ProxyError, UpstreamUnavailable
from proxy.http.headers import Headers, is_event_stream, is_success
from proxy.overflow import Refusal, RefusedPart, is_error_body, recognise
from proxy.searching.rounds import HiddenRounds
from proxy.upstream import UpstreamReply
from proxy.values import json_or_none, object_at, word_at

SAFE = 0.95
"""The share of the upstream's limit that is used, because its count and ours differ from text to text."""

SendBody = Callable[[bytes], Awaitable[UpstreamReply]]

Learn = Callable[[Refusal], object]

_log = logging.getLogger(__name__)


async def join_replies(reply: UpstreamReply, rounds: HiddenRounds, following: Following) -> UpstreamReply:
    """Reads replies in one piece and runs their searches, until a reply needs no other one after it.

    Returns that reply as the client gets it, or unchanged if it is an error or no completion.
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
    """Streamed replies joined into one; its status and headers are those of the first reply."""

    def __init__(self, reply: UpstreamReply, rounds: HiddenRounds, following: Following) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds
        self._following = following
        self._splicer = rounds.endpoint.splicer(runs_calls=rounds.runs_calls)
        self._failed: ReadReply | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the joined body, as they arrive; raises `UpstreamUnavailable`."""
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
        """The bytes of one reply for the client; hidden calls are run as soon as they are complete."""
        has_run, splicer = False, self._splicer
        try:
            async for chunk in self._reply.chunks():
                passed = splicer.feed(chunk)
                if splicer.has_searches and not has_run:
                    has_run = True
                    await self._rounds.run(splicer.said)
                if passed:
                    yield passed
                if splicer.failed_event:
                    self._failed = ReadReply(self.status, self.headers, splicer.failed_event)
                    return
                if splicer.is_over and splicer.is_continued:
                    return
        except UpstreamUnavailable as error:
            if not splicer.is_unanswered:
                raise
            self._failed = error_reply(self._rounds.endpoint, error)
            return
        if splicer.is_unanswered and not (splicer.is_over or splicer.is_continued):
            silent = UpstreamUnavailable("The upstream ended its reply before it said anything.")
            self._failed = error_reply(self._rounds.endpoint, silent)
        elif rest := splicer.rest():
            yield rest

    async def _next(self, failed: ReadReply | None) -> UpstreamReply:
        """The reply after a hidden round, or in place of one that has `failed`.

        Raises `UpstreamUnavailable` if that is an error, which ends the stream.
        """
        if failed is None:
            self._rounds.add_cost(self._splicer.said)
        reply = await self._following.reply(failed, text_sent=self._splicer.has_sent_text)
        if is_success(reply.status):
            return reply
        error = object_at(json_or_none((await read_whole(reply)).data), "error")
        message = f"The upstream answered {reply.status} after a search: {error.get('message', 'no message')}"
        raise UpstreamUnavailable(message, code=word_at(error, "code") or None)

    async def close(self) -> None:
        await self._reply.close()


@dataclass(slots=True)
class Following:
    """Gets the replies that follow the hidden rounds of one request.

    `send` sends a body to the upstream. `learn` gets each refusal for length.
    """

    rounds: HiddenRounds
    send: SendBody
    learn: Learn

    async def reply(self, failed: ReadReply | None = None, *, text_sent: bool) -> UpstreamReply:
        """The next reply, or the error that the client gets; raises `UpstreamUnavailable`.

        `failed` is a reply that failed before the client had anything of it: another reply takes its place, or the
        failed reply itself is returned if there is none. `text_sent` tells whether the client has text of the answer.
        """
        try:
            reply = failed or await self._request()
            refusal = self._refusal_in(reply)
            is_too_long = refusal is not None and refusal.kind is not RefusedPart.OUTPUT
            if is_too_long and await self.rounds.shorten(_acceptable_tokens(refusal, self.rounds.tokens)):
                reply = await self._request()
                self._refusal_in(reply)
        except UpstreamUnavailable as error:
            if text_sent:
                raise
            reply = error_reply(self.rounds.endpoint, error)
        if text_sent or self._is_good(reply):
            return reply
        _log.warning("memory search abandoned: the upstream answered %d to the request with the results", reply.status)
        self.rounds.give_up()
        try:
            return await self.send(self.rounds.plain_body())
        except UpstreamUnavailable:
            return reply

    async def _request(self) -> UpstreamReply:
        """The reply to the request with its hidden rounds; if it is no stream, it is read to its end.

        If it breaks off before its end, the client has nothing of it, and another reply can take its place.
        """
        reply = await self.send(self.rounds.body())
        return reply if is_success(reply.status) and is_event_stream(reply.headers) else await read_whole(reply)

    def _refusal_in(self, reply: UpstreamReply) -> Refusal | None:
        """The refusal in a reply that refuses the prompt for its length; the window is learned from it."""
        if not isinstance(reply, ReadReply):
            return None
        refusal = recognise(reply.status, reply.data, answer=self.rounds.endpoint.answer)
        if refusal is not None and refusal.kind is RefusedPart.INPUT:
            refusal = refusal.without_quoted(self.rounds.body())
            self.learn(refusal)
        return refusal

    def _is_good(self, reply: UpstreamReply) -> bool:
        if not isinstance(reply, ReadReply):
            return True
        return is_success(reply.status) and not is_error_body(reply.data, answer=self.rounds.endpoint.answer)


def _acceptable_tokens(refusal: Refusal | None, tokens: int) -> int | None:
    """The maximum tokens, by the proxy's count, of a request that the upstream accepts; None if it states no number.

    `tokens` is the proxy's count of the refused request.
    """
    if refusal is None or refusal.window is None or not refusal.prompt_tokens:
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
    """Reads a reply to its end, and closes it in any case; raises `UpstreamUnavailable`."""
    try:
        data = b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.close()
    return ReadReply(reply.status, reply.headers, data)


def error_reply(endpoint: Endpoint, error: ProxyError) -> ReadReply:
    return ReadReply(error.status, [(b"content-type", b"application/json")], endpoint.error_body(error))
