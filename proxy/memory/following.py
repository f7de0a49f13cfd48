"""Following a hidden round: the upstream is asked to go on with what was found, and something else where it refuses.

A prompt that has become too long by what was found is asked with less of it, or with a note that there is no room,
once. What is refused still, or for any other reason, under whatever status, or breaks off, was not the client's
request, which the upstream has taken: where the client has no text of the reply yet, that is asked as it was, without
the tool, and the search is forgotten. So an error is the client's only where its own request is refused too, or where
a text cannot be taken back any more.

What is no stream is looked at here, before it is followed. A stream flows at once; whoever relays it sees it fail, and
asks for another one `instead` as long as the client has nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from proxy.errors import UpstreamUnavailable
from proxy.http.sse import is_event_stream
from proxy.memory.replies import ReadReply, is_good, read, reply_of
from proxy.memory.rounds import Rounds
from proxy.overflow import Kind, Refusal, recognise
from proxy.overflow.numbers import LEAST
from proxy.reply.opening import Opened, UpstreamAnswer, opened

SAFE = 0.95
"""Of what the upstream says that it takes: its count and ours differ from text to text."""

_log = logging.getLogger(__name__)

Send = Callable[[bytes], Awaitable[UpstreamAnswer]]
Learn = Callable[[Refusal, int], object]


class Following:
    """Asks for what follows the hidden rounds of one request.

    `send` asks the upstream; `learn` is told what it refuses for its length, with the tokens of that by our own count.
    """

    def __init__(self, rounds: Rounds, send: Send, learn: Learn) -> None:
        self._rounds = rounds
        self._send = send
        self._learn = learn

    async def reply(self, *, spoken: bool) -> UpstreamAnswer:
        """The reply that follows, or the error that the client gets; raises `UpstreamUnavailable`.

        `spoken`: the client has text of the reply already.
        """
        return await self._taken(self._asked(spoken=spoken), spoken=spoken)

    async def instead(self, failed: ReadReply, *, spoken: bool) -> UpstreamAnswer:
        """The reply in place of one that has `failed` before the client had anything of it; raises
        `UpstreamUnavailable`. That one itself, where nothing can take its place."""
        return await self._taken(self._looked_at(failed), spoken=spoken)

    async def _taken(self, asked: Awaitable[Opened], *, spoken: bool) -> UpstreamAnswer:
        """What was asked for, or what is asked for in its place where the upstream does not take it."""
        try:
            following = await self._shortened(await asked, spoken=spoken)
            if not (spoken or is_event_stream(following.reply.headers)):
                # In one piece the client has nothing of it before all is there, so it may still break off.
                following = following._replace(reply=await read(following.reply))
        except UpstreamUnavailable as error:
            if spoken:
                raise
            following = Opened(reply_of(error))
        if spoken or _is_reply(following):
            return following.reply
        return await self._without_search(following.reply)

    async def _asked(self, *, spoken: bool) -> Opened:
        reply = await self._send(self._rounds.body())
        flows = is_good(reply) and is_event_stream(reply.headers)
        looks = not flows and (not spoken or self._rounds.tokens >= LEAST)
        return self._learned(await opened(reply, looks=looks))

    async def _looked_at(self, failed: ReadReply) -> Opened:
        return self._learned(Opened(failed, recognise(failed.status, failed.data), failed.data))

    def _learned(self, following: Opened) -> Opened:
        if following.refusal is not None and following.refusal.kind is Kind.INPUT:
            self._learn(following.refusal, self._rounds.tokens)
        return following

    async def _shortened(self, refused: Opened, *, spoken: bool) -> Opened:
        """What follows when a prompt that is refused for its length has less of what was found."""
        refusal = refused.refusal
        if refusal is None or refusal.kind is Kind.OUTPUT:
            return refused
        try:
            if not await self._rounds.shorten(_fitting(refusal, self._rounds.tokens)):
                return refused
        except BaseException:
            await refused.reply.close()
            raise
        await refused.reply.close()
        return await self._asked(spoken=spoken)

    async def _without_search(self, refused: UpstreamAnswer) -> UpstreamAnswer:
        """The reply to the client's own request; the error that was refused with, where the upstream is gone."""
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


def _is_reply(following: Opened) -> bool:
    """Whether it is no error, as far as that was looked at."""
    return is_good(following.reply) and not following.error


def _fitting(refusal: Refusal, tokens: int) -> int | None:
    """The most tokens, by our own count, of a request that the upstream takes; None where its refusal does not say.

    `tokens` is our own count of what was refused.
    """
    if refusal.window is None or not refusal.counted:
        return None
    return int(SAFE * (refusal.window - (refusal.asked or 0)) * tokens / refusal.counted)
