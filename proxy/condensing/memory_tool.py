"""Runs the calls of `search_memory` between the upstream and the client, which sees one reply.

A reply in one piece is read whole; a stream is passed on while it comes in (`proxy/searching.py`). If the model
called only the memory tool, the calls are run (`proxy/searching.py`) and the upstream is asked again, at most
`memory.max_rounds` times; the last time the model may not call the tool, so that it answers. If the model also called
tools of the client, the memory calls are run and the client gets its own calls: the results of the memory calls are
kept in the session for the client's next request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from proxy.condensing.recall import Recall, Searchable
from proxy.condensing.turn import Decision, RequestContext
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import encoding_of, is_event_stream, is_success
from proxy.knowledge.learned_windows import LearnedWindows
from proxy.knowledge.profiles import LessonScope
from proxy.overflow import Refusal
from proxy.runtime.lru import Lru
from proxy.searching import (
    Following,
    HiddenRounds,
    Offer,
    SendBody,
    StreamedReply,
    ToolState,
    join_replies,
    offer,
)
from proxy.settings.tables import MemorySettings
from proxy.tokens.counter import Counter
from proxy.upstream import UpstreamReply
from proxy.upstream.messages import read_whole
from strategies.core.condensation import replay
from strategies.core.pieces import Overlay, blocks_in
from strategies.core.transcript import Transcript, standing_patches
from strategies.core.view import item_for

MAX_SCOPES = 4_000
_TOOLS_REFUSED = (400, 404, 422, 500, 501)
"""Statuses with which servers say that a model takes no tools."""
_ABOUT_TOOLS = re.compile(rb"tool|function", re.IGNORECASE)
_log = logging.getLogger(__name__)


class SearchedReply(NamedTuple):
    """The reply that the client gets after all searches, and whether the upstream refused the tool for it."""

    reply: UpstreamReply
    refuses_tool: bool = False


class Searcher:
    """Offers the tool and runs its calls; one per app. A model's refusal of tools is remembered for `ttl` seconds."""

    def __init__(
        self, recall: Recall, settings: MemorySettings, learned: LearnedWindows, ttl: int, clock: Callable[[], float]
    ) -> None:
        self._recall = recall
        self._settings = settings
        self._learned = learned
        self._ttl = ttl
        self._clock = clock
        self._refused: Lru[LessonScope, float] = Lru(MAX_SCOPES)
        """When each refusal of tools is forgotten."""

    def with_offer(self, context: RequestContext) -> RequestContext:
        """The context with the offer of the tool and the patches that its standing condensation pays for.

        Blocks that stay come first, then the tool, then hidden rounds: what a condensation has paid for, it goes on to
        pay for. Hidden rounds are shown only together with the tool.
        """
        tool, found = context.policy.memory.tool, context.recognised
        if found.failure:
            return context
        if tool:
            context = context._replace(offerable=self._offerable(context))
        if not found.condensations:
            return context
        transcript, last = context.measured.transcript, found.last_applied
        standing = replay(
            transcript, found.condensations, context.overhead, context.counter, context.own_budget, last
        ).applied
        saved, covered = context.saved_by(standing), standing.covered if standing else 0
        patches = [patch for patch in standing_patches(found.patches, transcript) if patch.at > covered]
        sizes = {patch: _tokens(patch, transcript, context.counter) for patch in patches}
        blocks = _within(saved // 2, blocks_in(patches), sizes)
        spent = sum(sizes[block] for block in blocks)
        context = context._replace(offer=context.offerable.within(saved // 2 - spent))
        left = saved - spent - context.offer.tokens if context.offer.is_made else 0
        rounds = _within(left, [patch for patch in patches if patch not in blocks_in(patches)], sizes)
        if not (blocks or rounds):
            return context
        shown = tuple(sorted((*blocks, *rounds), key=attrgetter("at")))
        return context.with_transcripts(lambda transcript: transcript.having(patches=shown))

    def _offerable(self, context: RequestContext) -> Offer:
        body, scope = context.request.body, context.request.lesson_scope
        return offer(
            body.endpoint,
            body.values,
            context.counter,
            has_system=bool(context.measured.transcript.systems),
            refused=self.refuses_tools(scope),
            top_k=self._settings.top_k,
        )

    def refuses_tools(self, scope: LessonScope) -> bool:
        """Whether a model has refused tools, as far as this tenant knows."""
        return (self._refused.get(scope) or 0.0) > self._clock()

    def known_refusals(self) -> Iterator[tuple[LessonScope, float]]:
        """The models that refuse tools, and until when that is remembered."""
        return ((scope, until) for scope, until in self._refused.items() if until > self._clock())

    def rounds(self, decision: Decision, write: Callable[[Sequence[str], ToolState], bytes]) -> HiddenRounds:
        """The hidden rounds that may follow the view of a decision whose model is offered the tool.

        `write` gives the body with more messages, as JSON text.
        """
        context = decision.context
        searchable = Searchable.of(context.with_recorded(decision.applied), decision.view)
        return HiddenRounds(
            context.request.body.endpoint,
            decision.view,
            context.own_budget,
            lambda query: self._recall.search(searchable, query),
            write,
            max_rounds=self._settings.max_rounds if context.offer.runs_calls else 0,
            top_k=self._settings.top_k,
            allowance=context.saved_by(decision.applied) - context.offer.tokens - decision.view.memory_tokens,
        )

    async def run_searches(
        self, decision: Decision, rounds: HiddenRounds, reply: UpstreamReply, send: SendBody
    ) -> SearchedReply:
        """The reply for the client after all searches; raises `UpstreamUnavailable`. `send` sends a body upstream."""
        scope = decision.context.request.lesson_scope
        if not is_success(reply.status):
            return await self._without_tool(rounds, scope, reply, send)
        if encoding_of(reply.headers):
            return SearchedReply(reply)

        def learn(refusal: Refusal) -> None:
            if refusal.window is not None and not decision.policy.window.is_set:
                self._learned.learn(scope, refusal.window)

        following = Following(rounds, send, learn)
        if is_event_stream(reply.headers):
            return SearchedReply(StreamedReply(reply, rounds, following))
        return SearchedReply(await join_replies(reply, rounds, following))

    async def _without_tool(
        self, rounds: HiddenRounds, scope: LessonScope, reply: UpstreamReply, send: SendBody
    ) -> SearchedReply:
        """The reply to the same request without the tool if the upstream refuses tools; else its error."""
        if reply.status not in _TOOLS_REFUSED:
            return SearchedReply(reply)
        error = await read_whole(reply)
        if not is_about_tools(error.data):
            return SearchedReply(error)
        plain = rounds.plain_body()
        try:
            again = await send(plain)
        except UpstreamUnavailable:
            return SearchedReply(error)
        if not is_success(again.status):
            await again.close()
            return SearchedReply(error)
        await error.close()
        self._refused.put(scope, self._clock() + self._ttl)
        _log.warning("%s takes no tools, so the memory tool is not offered to it", scope.named)
        return SearchedReply(again, refuses_tool=True)


def is_about_tools(error: bytes) -> bool:
    """Whether an error may say that a model takes no tools."""
    return _ABOUT_TOOLS.search(error) is not None


def _tokens(patch: Overlay, transcript: Transcript, counter: Counter) -> int:
    return sum(item_for(piece, transcript, counter).message.tokens for piece in patch.pieces)


def _within(most: int, patches: Sequence[Overlay], sizes: Mapping[Overlay, int]) -> list[Overlay]:
    """The first patches that have at most `most` tokens together, so that a later one never displaces them."""
    totals = accumulate(sizes[patch] for patch in patches)
    return [patch for patch, total in zip(patches, totals, strict=True) if total <= most]
