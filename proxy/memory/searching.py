"""Searching: the calls of `search_memory` are run between the upstream and the client, who sees one reply.

A reply in one piece is read whole; one in events flows on while it comes (`proxy/memory/stream.py`). When it has called
nothing but the memory tool, the calls are run and the upstream is asked again, at most `memory.max_rounds` times; the
last time without the tool, so that there is an end. When it has called tools of the client too, the memory calls are
run, and the client gets its own: the results wait in the session for its next request.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple

from proxy.decision import Action, Decision
from proxy.errors import UpstreamUnavailable
from proxy.headers import Headers, first
from proxy.intake import Case
from proxy.lru import Lru
from proxy.memory.heard import Heard, heard_in, told
from proxy.memory.inject import Injector
from proxy.memory.recall import Recall
from proxy.memory.rounds import Rounds
from proxy.memory.stream import Splicer
from proxy.memory.tool import offer
from proxy.opening import Answer
from proxy.reasons import Reason
from proxy.setting_tables import MemorySettings
from proxy.viewing import spliced
from strategies.core.condensation import Overlay
from strategies.core.transcript import Transcript

MOST_MODELS = 1_000
_REFUSING = (400, 404, 422, 500, 501)
"""With these statuses servers say that a model takes no tools."""
_ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)
_GIVES_WAY = ("", Reason.BELOW_MARKS, Reason.WAITING_FOR_STEP, Reason.WINDOW_UNKNOWN)
"""Reasons that say only that nothing was condensed."""
_PLAIN = ("", "identity")

Send = Callable[[bytes], Awaitable[Answer]]


class Searcher:
    """Offers the tool and runs its calls; one per app. A refusal of tools is remembered for `ttl` seconds."""

    def __init__(self, recall: Recall, settings: MemorySettings, ttl: int, clock: Callable[[], float]) -> None:
        self._recall = recall
        self._settings = settings
        self._ttl = ttl
        self._clock = clock
        self._refused: Lru[str, float] = Lru(MOST_MODELS)

    def offered(self, case: Case) -> Case:
        """The case with the offer of the tool, and with the hidden rounds that earlier requests have left."""
        if not case.policy.memory.tool or case.found.failure:
            return case
        values, transcript = case.request.body.values, case.measured.transcript
        refused = (self._refused.get(case.request.model) or 0.0) > self._clock()
        made = offer(values, case.counter, has_system=bool(transcript.systems), refused=refused)
        case = replace(case, offer=made)
        patches = standing_patches(case.found.patches, transcript) if made.is_made else ()
        if not patches:
            return case
        patched = replace(transcript, patches=patches)
        whole = patched if case.is_aligned else case.whole
        return replace(case, measured=case.measured._replace(transcript=patched), whole=whole)

    def rounds(self, decision: Decision, case: Case) -> Rounds | None:
        """What may come behind a decision's view; None where the tool is not offered."""
        told_why = case.offer.reason
        if told_why and decision.action is not Action.DEGRADED and decision.reason in _GIVES_WAY:
            decision.reason = told_why
        if not case.offer.is_made:
            return None
        return Rounds(
            decision.view,
            case.policy.budget,
            lambda query: self._recall.search(case, query),
            lambda hidden, offering: spliced(decision.view, case, hidden, offering, probe=decision.probed),
            most=self._settings.max_rounds,
            top_k=self._settings.top_k,
            runs=case.offer.runs,
        )

    async def searched(self, decision: Decision, model: str, reply: Answer, send: Send) -> Answer:
        """The reply that the client gets; raises `UpstreamUnavailable`. `send` asks the upstream again."""
        rounds = decision.rounds
        if rounds is None:
            return reply
        if not _is_good(reply):
            return await self._without_tool(decision, rounds, model, reply, send)
        if (first(reply.headers, b"content-encoding") or "") not in _PLAIN:
            return reply
        if (first(reply.headers, b"content-type") or "").startswith("text/event-stream"):
            return StreamedReply(reply, rounds, send)
        return await _whole(reply, rounds, send)

    async def _without_tool(self, decision: Decision, rounds: Rounds, model: str, reply: Answer, send: Send) -> Answer:
        """The reply to the same request without the tool, where the upstream refuses tools; else its error."""
        if reply.status not in _REFUSING:
            return reply
        error = await _read(reply)
        if not _ABOUT_TOOLS.search(error.data):
            return error
        try:
            again = await send(rounds.plain_body())
        except UpstreamUnavailable:
            return error
        if not _is_good(again):
            await again.close()
            return error
        self._refused.put(model, self._clock() + self._ttl)
        decision.reason, decision.rounds = Reason.MEMORY_TOOL_REFUSED, None
        return again


class Memories(NamedTuple):
    """What memory does for requests: blocks are put into views, and searches run."""

    injector: Injector
    searcher: Searcher


def standing_patches(patches: tuple[Overlay, ...], transcript: Transcript) -> tuple[Overlay, ...]:
    """The patches whose anchor stands in a transcript that has gone on since, in order, one at each place.

    What follows must not be the result of a call: a round is never parted. Where nothing follows, the client asks for
    another reply than the one that the patch led to, and the model searches anew.
    """
    chain, digests = transcript.chain, transcript.digests
    at = {
        patch.at: patch
        for patch in patches
        if 0 < patch.at < len(chain) and digests[patch.at - 1] == patch.anchor and not chain[patch.at].is_result
    }
    return tuple(at[place] for place in sorted(at))


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


async def _read(reply: Answer) -> ReadReply:
    """A reply read to its end; raises `UpstreamUnavailable`. The call is over then, however it ends."""
    try:
        data = b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.close()
    return ReadReply(reply.status, reply.headers, data)


async def _whole(reply: Answer, rounds: Rounds, send: Send) -> Answer:
    """The last of the replies in one piece, as the client gets it; the error of one that is none."""
    earlier: list[Heard] = []
    while True:
        read = await _read(reply)
        heard = heard_in(read.data) if _is_good(read) else None
        if heard is None:
            return read
        if rounds.runs and heard.searches:
            await rounds.run(heard)
            if not heard.has_others:
                rounds.count(heard)
                earlier.append(heard)
                reply = await send(rounds.body())
                continue
        return ReadReply(read.status, read.headers, told(read.data, earlier))


class StreamedReply:
    """Several replies in events as one; the head is that of the first."""

    def __init__(self, reply: Answer, rounds: Rounds, send: Send) -> None:
        self.status = reply.status
        self.headers = [pair for pair in reply.headers if pair[0].lower() != b"content-length"]
        self._reply = reply
        self._rounds = rounds
        self._send = send
        self._splicer = Splicer(runs=rounds.runs)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come in; raises `UpstreamUnavailable`."""
        while True:
            async for passed in self._passed():
                yield passed
            if not self._splicer.goes_on:
                return
            self._rounds.count(self._splicer.heard)
            await self._reply.close()
            self._reply = await self._next()
            self._splicer.begin(runs=self._rounds.runs)

    async def _passed(self) -> AsyncIterator[bytes]:
        """What the client gets of one reply; hidden calls are run as soon as they are whole."""
        has_run = False
        async for chunk in self._reply.chunks():
            passed = self._splicer.feed(chunk)
            if self._splicer.searches and not has_run:
                has_run = True
                await self._rounds.run(self._splicer.heard)
            if passed:
                yield passed
            if self._splicer.is_over and self._splicer.goes_on:
                return
        if rest := self._splicer.rest():
            yield rest

    async def _next(self) -> Answer:
        """The reply after a hidden round; an error instead of it ends the stream."""
        reply = await self._send(self._rounds.body())
        if _is_good(reply):
            return reply
        error = await _read(reply)
        message, code = _said(error.data)
        raise UpstreamUnavailable(f"The upstream answered {error.status} after a search: {message}", code=code)

    async def close(self) -> None:
        """Ends the call that is under way."""
        await self._reply.close()


def _is_good(reply: Answer) -> bool:
    return HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES


def _said(data: bytes) -> tuple[str, str | None]:
    """The message and the code of an error in OpenAI's form, as far as it has them."""
    try:
        error: Any = json.loads(data)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        error = None
    if not isinstance(error, Mapping):
        return "no message", None
    code = error.get("code")
    return str(error.get("message")), code if isinstance(code, str) else None
