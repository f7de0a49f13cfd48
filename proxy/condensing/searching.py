"""Runs the calls of `search_memory` between the upstream and the client, which sees one reply.

A reply in one piece is read whole; a stream is passed on while it comes in (`proxy/searching/joining.py`). If the model
called only the memory tool, the calls are run (`proxy/searching/rounds.py`) and the upstream is asked again, at most
`memory.max_rounds` times; the last time the model may not call the tool, so that it answers. If the model also called
tools of the client, the memory calls are run and the client gets its own calls: the results of the memory calls are
kept in the session for the client's next request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import NamedTuple

from proxy.condensing.attempt import spliced
from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.condensing.recall import Recall, Searchable
from proxy.errors import UpstreamUnavailable
from proxy.http.headers import encoding_of, is_event_stream, is_success
from proxy.knowledge.learned_windows import LearnedWindows
from proxy.knowledge.profiles import LessonScope
from proxy.overflow import Refusal
from proxy.runtime.lru import Lru
from proxy.searching.joining import Following, SendBody, StreamedReply, join_replies, read_whole
from proxy.searching.rounds import HiddenRounds, offer
from proxy.settings.tables import MemorySettings
from proxy.upstream import UpstreamReply
from strategies.core.pieces import is_memory
from strategies.core.transcript import standing_patches

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
        """The context with the offer of the tool, and with the hidden rounds of earlier requests in its transcript.

        The transcript also has the memory blocks that stay at their places, whether the tool is offered or not.
        """
        if context.recognised.failure:
            return context
        if not context.policy.memory.tool:
            return _with_patches(context, blocks_only=True) if context.keeps_blocks else context
        body, scope = context.request.body, context.request.lesson_scope
        made = offer(
            body.endpoint,
            body.values,
            context.counter,
            has_system=bool(context.measured.transcript.systems),
            refused=self.refuses_tools(scope),
            top_k=self._settings.top_k,
        )
        return _with_patches(context._replace(offer=made), blocks_only=not made.is_made)

    def refuses_tools(self, scope: LessonScope) -> bool:
        """Whether a model has refused tools, as far as this tenant knows."""
        return (self._refused.get(scope) or 0.0) > self._clock()

    def rounds(self, decision: Decision, context: RequestContext) -> HiddenRounds:
        """The hidden rounds that may follow the view of a decision whose model is offered the tool."""
        return HiddenRounds(
            context.request.body.endpoint,
            decision.view,
            context.policy.budget,
            lambda query: self._recall.search(Searchable.of(context), query, self._settings.embeddings_search_wait),
            lambda hidden, tool_state: spliced(decision.view, context, hidden, tool_state, probe=decision.probed),
            max_rounds=self._settings.max_rounds,
            top_k=self._settings.top_k,
            runs_calls=context.offer.runs_calls,
        )

    async def run_searches(
        self, decision: Decision, rounds: HiddenRounds, scope: LessonScope, reply: UpstreamReply, send: SendBody
    ) -> SearchedReply:
        """The reply for the client after all searches; raises `UpstreamUnavailable`. `send` sends a body upstream."""
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
        self._refused.put(scope, self._clock() + self._ttl)
        _log.warning("%s takes no tools, so the memory tool is not offered to it", scope.named)
        return SearchedReply(again, refuses_tool=True)


def is_about_tools(error: bytes) -> bool:
    """Whether an error may say that a model takes no tools."""
    return _ABOUT_TOOLS.search(error) is not None


def _with_patches(context: RequestContext, *, blocks_only: bool) -> RequestContext:
    """The context with the patches that stand in its transcript; with `blocks_only`, only memory blocks."""
    transcript = context.measured.transcript
    patches = standing_patches(context.recognised.patches, transcript)
    if blocks_only:
        patches = tuple(patch for patch in patches if all(map(is_memory, patch.pieces)))
    if not patches:
        return context
    patched = transcript.having(patches=patches)
    whole = patched if context.is_aligned else context.full_transcript
    return context._replace(measured=context.measured._replace(transcript=patched), full_transcript=whole)
