"""Offers the tool `search_memory`, and says what its calls may search; `proxy/conversations/searching.py` runs them.

If the model called only the memory tool, the upstream is asked again, at most `memory.max_rounds` times; the last time
the model may not call the tool, so that it answers. If the model also called tools of the client, the memory calls are
run and the client gets its own calls: the results of the memory calls are kept in the session for the client's next
request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

from proxy.condensing.reasoning import binds
from proxy.condensing.recall import Recall, Searchable
from proxy.condensing.turn import Decision, RequestContext
from proxy.conversations.searching import HiddenRounds, Offer, ToolState, offer
from proxy.runtime.lru import Lru
from proxy.servers import LessonScope
from proxy.settings.tables import MemorySettings
from proxy.tokens.counter import Counter
from strategies.core.condensation import replay
from strategies.core.pieces import Overlay, blocks_in, carried_in
from strategies.core.transcript import Transcript, standing_patches
from strategies.core.view import item_for

MAX_SCOPES = 4_000
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Searcher:
    """Offers the tool; one per app. A model's refusal of tools is remembered for `ttl` seconds."""

    _recall: Recall
    _settings: MemorySettings
    ttl: int
    _clock: Callable[[], float]
    _refused: Lru[LessonScope, float] = field(default_factory=lambda: Lru(MAX_SCOPES), init=False)
    """When each refusal of tools is forgotten."""

    def with_memory(self, context: RequestContext) -> RequestContext:
        """The context with the offer of the tool and the patches that its standing condensation pays for.

        Blocks come first, then the tool, then hidden rounds: what a condensation has paid for, it goes on to pay for.
        Hidden rounds are shown only together with the tool.
        """
        tool, found = context.policy.memory.tool, context.recognised
        if found.failure:
            return context
        if tool:
            context = context._replace(offerable=self._offerable(context))
        if not found.condensations or not (tool or found.patches):
            return context
        transcript, last = context.history.measured.transcript, found.last_applied
        standing = replay(
            transcript, found.condensations, context.sized.overhead, context.server.counter, context.sized.budget, last
        ).applied
        saved, covered = context.saved_by(standing), standing.covered if standing else 0
        patches = [patch for patch in standing_patches(found.patches, transcript) if patch.stands_behind(covered)]
        sizes = {patch: _tokens(patch, transcript, context.server.counter) for patch in patches}
        placed, carried = blocks_in(patches), carried_in(transcript.patches)
        patches = [patch for patch in patches if not patch.is_carried]
        newest = context.history.transcript.last_user if context.policy.block_is_for_turn else None
        # No reasoning is bound to a block that leaves with the next user message.
        newest = None if binds(context) or context.server.counter.dialect.drops_reasoning else newest
        wanted = [block for block in placed if newest is None or block.at == newest]
        blocks = _within(saved // 2, wanted if context.shows_blocks(standing) else (), sizes)
        spent = sum(sizes[block] for block in blocks)
        context = context.with_offer(context.offerable.within(saved // 2 - spent))
        left = saved - spent - context.offer.tokens if context.offer.is_made else 0
        rounds = _within(left, [patch for patch in patches if patch not in placed], sizes)
        if not (blocks or rounds):
            return context
        shown = tuple(sorted((*blocks, *rounds, *carried), key=attrgetter("order")))
        return context.with_transcripts(lambda transcript: transcript.having(patches=shown))

    def _offerable(self, context: RequestContext) -> Offer:
        body, scope = context.request.body, context.request.lesson_scope
        return offer(
            body.endpoint,
            body.values,
            context.server.counter,
            has_system=bool(context.history.measured.transcript.systems),
            refused=self.refuses_tools(scope),
            top_k=self._settings.top_k,
        )

    def refuses_tools(self, scope: LessonScope) -> bool:
        """Whether a model has refused tools, as far as this tenant knows."""
        return (self._refused.get(scope) or 0.0) > self._clock()

    def note_refusal(self, scope: LessonScope) -> None:
        """Remembers that a model takes no tools."""
        self._refused.put(scope, self._clock() + self.ttl)
        _log.warning("%s takes no tools, so the memory tool is not offered to it", scope.named)

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
            context.sized.budget,
            lambda query: self._recall.search(searchable, query),
            write,
            max_rounds=self._settings.max_rounds if context.offer.runs_calls else 0,
            top_k=self._settings.top_k,
            allowance=context.saved_by(decision.applied) - context.offer.tokens - decision.view.memory_tokens,
        )


def _tokens(patch: Overlay, transcript: Transcript, counter: Counter) -> int:
    return sum(item_for(piece, transcript, counter).message.tokens for piece in patch.pieces)


def _within(most: int, patches: Sequence[Overlay], sizes: Mapping[Overlay, int]) -> list[Overlay]:
    """The first patches that have at most `most` tokens together, so that a later one never displaces them."""
    totals = accumulate(sizes[patch] for patch in patches)
    return [patch for patch, total in zip(patches, totals, strict=True) if total <= most]
