"""Several replies as the one that the client sees: in one piece, or in events that flow on while they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from proxy.errors import UpstreamUnavailable
from proxy.memory.following import Following
from proxy.memory.heard import Heard, heard_in, told
from proxy.memory.replies import ReadReply, is_good, read, reply_of, said
from proxy.memory.rounds import Rounds
from proxy.memory.stream import Splicer
from proxy.reply.opening import UpstreamAnswer


async def whole(reply: UpstreamAnswer, rounds: Rounds, following: Following) -> UpstreamAnswer:
    """The last of the replies in one piece, as the client gets it; the error of one that is none."""
    earlier: list[Heard] = []
    while True:
        come = await read(reply)
        heard = heard_in(come.data) if is_good(come) else None
        if heard is None:
            return come
        if rounds.runs and heard.searches:
            await rounds.run(heard)
            if not heard.has_others:
                rounds.count(heard)
                earlier.append(heard)
                reply = await following.reply(spoken=False)
                if rounds.is_given_up:
                    earlier = [replace(each, message={}) for each in earlier]
                continue
        return ReadReply(come.status, come.headers, told(come.data, earlier))


class StreamedReply:
    """Several replies in events as one; the head is that of the first."""

    def __init__(self, reply: UpstreamAnswer, rounds: Rounds, following: Following) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds
        self._following = following
        self._splicer = Splicer(runs=rounds.runs)
        self._failed: ReadReply | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; raises `UpstreamUnavailable`."""
        while True:
            async for passed in self._passed():
                yield passed
            if not (self._failed or self._splicer.goes_on):
                return
            await self._reply.close()
            failed, self._failed = self._failed, None
            self._reply = await self._next(failed)
            replaceable = not self._rounds.is_given_up and self._reply is not failed
            self._splicer.begin(runs=self._rounds.runs, replaceable=replaceable)

    async def _passed(self) -> AsyncIterator[bytes]:
        """What the client gets of one reply; hidden calls are run as soon as they are whole."""
        has_run = False
        try:
            async for chunk in self._reply.chunks():
                passed = self._splicer.feed(chunk)
                if self._splicer.searches and not has_run:
                    has_run = True
                    await self._rounds.run(self._splicer.heard)
                if passed:
                    yield passed
                if self._splicer.refused:
                    self._failed = ReadReply(self.status, self.headers, self._splicer.refused)
                    return
                if self._splicer.is_over and self._splicer.goes_on:
                    return
        except UpstreamUnavailable as error:
            if not self._splicer.is_unanswered:
                raise
            self._failed = reply_of(error)
            return
        if self._splicer.is_unanswered and not (self._splicer.is_over or self._splicer.goes_on):
            self._failed = reply_of(UpstreamUnavailable("The upstream ended its reply before it said anything."))
            return
        if rest := self._splicer.rest():
            yield rest

    async def _next(self, failed: ReadReply | None) -> UpstreamAnswer:
        """The reply after a hidden round, or instead of one that has `failed`; an error ends the stream."""
        spoken = self._splicer.has_spoken
        if failed is None:
            self._rounds.count(self._splicer.heard)
            reply = await self._following.reply(spoken=spoken)
        else:
            reply = await self._following.instead(failed, spoken=spoken)
        if is_good(reply):
            return reply
        error = await read(reply)
        message, code = said(error.data)
        raise UpstreamUnavailable(f"The upstream answered {error.status} after a search: {message}", code=code)

    async def close(self) -> None:
        """Ends the call that is under way."""
        await self._reply.close()
