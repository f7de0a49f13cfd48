"""Joins the replies of one request into the one that the client sees.

A model that searches its memory answers in several replies. Replies in one piece are read whole before the client gets
anything; replies in events flow on to the client while they come (`stream`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from proxy.errors import UpstreamUnavailable
from proxy.searching.following import Following, ReadReply, error_in, error_reply, is_good, read_whole
from proxy.searching.reply_choice import FirstChoice, first_choice_in, reply_for_client
from proxy.searching.rounds import Rounds
from proxy.searching.stream import Splicer
from proxy.upstream import UpstreamReply


async def join_replies(reply: UpstreamReply, rounds: Rounds, following: Following) -> UpstreamReply:
    """Reads replies in one piece and runs their searches, until one needs no other reply after it.

    Returns that one as the client gets it, or the first one that is an error or no completion, as it came.
    """
    earlier: list[FirstChoice] = []
    while True:
        current = await read_whole(reply)
        choice = first_choice_in(current.data) if is_good(current) else None
        if choice is None:
            return current
        if rounds.runs_calls and choice.calls_memory:
            await rounds.run(choice)
            if not choice.has_client_calls:
                rounds.add_cost(choice)
                earlier.append(choice)
                reply = await following.reply(text_sent=False)
                if rounds.is_given_up:
                    earlier = [replace(each, message={}) for each in earlier]
                continue
        return ReadReply(current.status, current.headers, reply_for_client(current.data, earlier))


class StreamedReply:
    """Replies in events as one stream; its status and headers are those of the first reply."""

    def __init__(self, reply: UpstreamReply, rounds: Rounds, following: Following) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds
        self._following = following
        self._splicer = Splicer(runs_calls=rounds.runs_calls)
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
                    await self._rounds.run(self._splicer.first_choice)
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
            self._failed = error_reply(error)
            return
        if self._splicer.is_unanswered and not (self._splicer.is_over or self._splicer.is_continued):
            self._failed = error_reply(UpstreamUnavailable("The upstream ended its reply before it said anything."))
            return
        if rest := self._splicer.rest():
            yield rest

    async def _next(self, failed: ReadReply | None) -> UpstreamReply:
        """The reply after a hidden round, or in place of one that has `failed`.

        Raises `UpstreamUnavailable` where that is an error, which ends the stream.
        """
        text_sent = self._splicer.has_sent_text
        if failed is None:
            self._rounds.add_cost(self._splicer.first_choice)
            reply = await self._following.reply(text_sent=text_sent)
        else:
            reply = await self._following.in_place_of(failed, text_sent=text_sent)
        if is_good(reply):
            return reply
        error = await read_whole(reply)
        message, code = error_in(error.data)
        raise UpstreamUnavailable(f"The upstream answered {error.status} after a search: {message}", code=code)

    async def close(self) -> None:
        """Closes the call that is under way."""
        await self._reply.close()
