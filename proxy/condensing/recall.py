"""Memory of a conversation: searches what has left the view, and puts what it finds before each user message.

Searches. A client sends its whole history, or the store puts back what it dropped, so a search covers the transcript at
hand: those of its messages that the view does not show, and the cards of its condensations. Nothing is indexed before
something is searched for. Then the messages that have left the view since the last search are added to the index of
the conversation, which all forks after its first condensation share. The key of an entry is the message's digest in the
chain, and a request finds the entries of its own chain only.

Blocks. A memory block tells what was said earlier about a user message. It is chosen when a view first hides something
from that message, kept with its branch, and is byte for byte the same in every view of that turn, so that the
upstream's prompt cache of the turn stays valid; and so it is if nothing relevant was found. It leaves with the next
user message. It never repeats what the view shows, nor what a strategy dropped on purpose.

A block, the blocks that stay and the offer of the tool have at most half of the tokens that the condensation saves.

In a protocol that binds reasoning to the messages before it, a block that left would invalidate the reasoning of its
turn. There a block is a patch, which stays at its place until a condensation replaces it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from proxy.condensing.turn import Decision, RequestContext
from proxy.reasons import Action
from proxy.runtime.owned_tasks import message_load, offload
from proxy.searching import NO_OFFER
from proxy.sessions.cards import combined_cards
from proxy.sessions.session import MemoryBlock, Session, has_node
from proxy.store.base import StoreKey
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation
from strategies.core.messages import ROOT
from strategies.core.pieces import Literal, Overlay, PieceKind, is_memory
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.memory.block import appears_in, block_room, memory_block, notes_for
from strategies.memory.ranking import Hit, Index, card_entry, message_entries

MIN_ROOM = 32
"""Tokens below which no block is chosen."""
MAX_INDEXES = 64
MAX_ENTRIES = 16_000
"""Entries of all indexes together; one takes 1 to 4 KB with its text and its share of the index."""


@dataclass(frozen=True, slots=True)
class Searchable:
    """What a request may search: the messages of its history that its view hides, and the cards that it may see.

    `key` names the index that is used; if it is None, the index is dropped after the request, and no other request sees
    it.
    """

    key: StoreKey | None
    history: Transcript
    hidden: Sequence[int]
    """The chain indices of those messages, in order."""
    cards: Callable[[], Sequence[MemoryCard]]

    @classmethod
    def of(cls, context: RequestContext, view: View) -> Searchable:
        """What a request with this view may search; a request that may not be stored leaves nothing in memory."""
        hidden, cards = hidden_by(view), partial(cards_of, context)
        if not context.may_store:
            return cls(None, context.history, hidden, cards)
        # The first condensation is the same in all forks that it stands in.
        first = min((made.covered for made in _condensed(context) if made.standing), default=0)
        family = context.history.digests[first - 1].hex() if first else context.recognised.key.name
        return cls(StoreKey(context.request.tenant, family), context.history, hidden, cards)

    def nodes(self) -> list[tuple[int, str]]:
        """The place of each hidden message, and its key."""
        return [(place, self.history.digests[place].hex()) for place in self.hidden]


def _condensed(context: RequestContext) -> list[Condensation]:
    """All condensations of a request's history."""
    digests = context.history.digests
    return [known for known in context.recognised.condensations if has_node(digests, known.covered, known.digest)]


def cards_of(context: RequestContext) -> list[MemoryCard]:
    """The memory cards that a request may see, of its history and of its scope."""
    session = context.recognised.session or Session(id="", source="", created_at=0.0)
    own, scope = session.cards(_condensed(context)), context.recognised.card_scope
    return combined_cards(session, own, scope) if scope else own


def hidden_by(view: View) -> list[int]:
    """The chain indices of the messages that a view shows no longer, or only in part."""
    shown = {item.source for item in view.front[: view.head_size] if item.intact}
    return [place for place in range(view.covered_count) if place not in shown]


class _SharedIndex:
    """The index of one conversation and its forks, and the chain nodes that are in it."""

    def __init__(self) -> None:
        self.index = Index()
        # Held by the thread, which continues if its request is cancelled; the next request must not write meanwhile.
        self._lock = threading.RLock()
        self._nodes: set[str] = set()
        self._most = MAX_ENTRIES

    def learn(self, transcript: Transcript, nodes: list[tuple[int, str]]) -> None:
        """Adds the messages that are not in the index yet."""
        with self._lock:
            is_full = len(self.index) > self._most
            if is_full:  # most of it may be messages that the client has edited away
                self.index, self._nodes = Index(), set()
            for place, node in nodes:
                if node not in self._nodes:
                    self._nodes.add(node)
                    self.index.add(message_entries(node, transcript.chain[place], place))
            if is_full:
                self._most = max(MAX_ENTRIES, 2 * len(self.index))

    def search(self, searchable: Searchable, query: str) -> list[Hit]:
        """The hits of a query, best first."""
        nodes = searchable.nodes()
        with self._lock:
            self.learn(searchable.history, nodes)
            return self.index.search(query, allowed=self._allowed(searchable, nodes))

    def _allowed(self, searchable: Searchable, nodes: list[tuple[int, str]]) -> set[str]:
        """The keys of the entries that may be found, including cards."""
        cards = [card_entry(card.id, card) for card in searchable.cards()]
        self.index.add(cards)
        return {*(node for _, node in nodes), *(entry.key for entry in cards)}


class Recall:
    """The indexes that were used last; one per app."""

    def __init__(self) -> None:
        self._indexed: OrderedDict[StoreKey, _SharedIndex] = OrderedDict()

    async def search(self, searchable: Searchable, query: str) -> list[Hit]:
        """The hits of a query, best first."""
        hits = await asyncio.to_thread(self._of(searchable.key).search, searchable, query)
        self._evict()
        return hits

    def _of(self, key: StoreKey | None) -> _SharedIndex:
        if key is None:
            return _SharedIndex()
        indexed = self._indexed.setdefault(key, _SharedIndex())
        self._indexed.move_to_end(key)
        return indexed

    def _evict(self) -> None:
        """Drops the least recently used indexes beyond the bounds; the newest stays."""
        while len(self._indexed) > 1 and (len(self._indexed) > MAX_INDEXES or self._entries() > MAX_ENTRIES):
            self._indexed.popitem(last=False)

    def _entries(self) -> int:
        return sum(len(indexed.index) for indexed in self._indexed.values())


def with_standing_block(context: RequestContext) -> RequestContext:
    """The context with the block that an earlier request of this turn has shown, if one has, and with its tokens."""
    branch, history = context.branch, context.history
    if branch is None or history.last_user is None or branch.block.node != history.digests[history.last_user].hex():
        return context
    return context._replace(memory_block=branch.block, block_tokens=_tokens_of(branch.block, context))


def _tokens_of(block: MemoryBlock, context: RequestContext) -> int:
    return context.counter.message(json.loads(block.raw)) if block.raw else 0


def _overlay_of(block: MemoryBlock, context: RequestContext) -> Overlay:
    """The overlay that puts the block into a view."""
    at = context.history.last_user or 0
    anchor = context.history.digests[at - 1] if at else ROOT
    return Overlay(anchor, at, 0, (Literal(block.raw, PieceKind.MEMORY),))


class Injector:
    """Chooses what memory adds to views, and puts it in; one per app."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall

    async def inject(self, decision: Decision) -> Decision:
        """The decision with the offer of the tool and this turn's block, as far as its condensation pays for them."""
        context = decision.context
        # A view that was made without the store has no recorded condensation, so it cannot be folded again.
        if not any(context.policy.memory) or context.recognised.failure:
            return decision
        if decision.applied is None and context.offer is NO_OFFER and not context.block_tokens:
            return decision
        context = context.with_recorded(decision.applied)
        allowance = context.saved_by(decision.applied) // 2
        if context.keeps_blocks:
            allowance -= sum(item.message.tokens for item in decision.view.front if is_memory(item.piece))
        context = context.offering(context.offerable.within(allowance) if allowance > 0 else NO_OFFER)
        decision = _folded(decision._replace(offer=context.offer), context, ())
        allowance -= context.offer.tokens
        if not context.policy.memory.inject or allowance <= 0:
            return decision
        if context.keeps_blocks:
            return await self._inject_for_good(decision, context, allowance)
        block = context.memory_block
        hides_less = block is not None and decision.view.covered_count < block.covered
        was_empty = block is not None and not block.raw and decision.action is Action.CONDENSED
        if block is None or hides_less or was_empty:
            block = await self._choose_block(decision.view, context, allowance)
        decision = decision._replace(memory_block=block)
        if not block.raw or _tokens_of(block, context) > allowance:
            return decision
        with_block = _folded(decision, context, (_overlay_of(block, context),))
        is_shown = any(is_memory(item.piece) for item in with_block.view.front)
        return with_block if is_shown and with_block.tokens_after <= decision.tokens_before else decision

    async def _inject_for_good(self, decision: Decision, context: RequestContext, allowance: int) -> Decision:
        """The decision with a block before a new user message, as a patch that stays in later transcripts."""
        last, transcript = context.history.last_user, context.measured.transcript
        is_new = last is not None and 0 < last == len(transcript.chain) - 1
        if not is_new or any(patch.at == last for patch in transcript.patches):
            return decision
        block = await self._choose_block(decision.view, context, allowance)
        if not block.raw:
            return decision
        patch = _overlay_of(block, context)
        patches = (*transcript.patches, patch)
        context = context.with_transcripts(lambda transcript: transcript.having(patches=patches))
        return _folded(decision, context, ())._replace(memory_patch=patch)

    async def _choose_block(self, view: View, context: RequestContext, allowance: int) -> MemoryBlock:
        """The block for the last user message, of at most `allowance` tokens; an empty one if there is none."""
        last, budget, policy = context.history.last_user, context.own_budget, context.policy
        if last is None or budget is None:
            return MemoryBlock()
        free = budget.headroom(view.tokens) - budget.least_headroom
        left = min(block_room(budget.window, policy.block_tokens), allowance, free)
        node, raw = context.history.digests[last].hex(), ""
        if left >= MIN_ROOM:
            hits = await self._recall.search(Searchable.of(context, view), context.history.chain[last].text)
            unwanted = {index for made in _condensed(context) if made.standing for index in made.dropped}
            wanted = [hit for hit in hits if hit.entry.place not in unwanted]
            load = message_load(view.size, view.tokens)
            raw = await offload(load, _block_text, wanted, view, left, policy.block_passages)
        return MemoryBlock(node, raw, view.covered_count)


def _folded(decision: Decision, context: RequestContext, inserted: tuple[Overlay, ...]) -> Decision:
    """The decision with its view folded again, with the offer of the tool and with what memory inserts."""
    heads = (decision.applied.overlay,) if decision.applied else ()
    transcript = context.transcript_under(decision.applied)
    return decision.with_view(fold(transcript, (*heads, *inserted), context.framing, context.counter))


def _block_text(hits: Sequence[Hit], view: View, tokens: int, top_k: int) -> str:
    """The JSON text of a block of at most `tokens`, which repeats nothing that the view shows; "" if there is none.

    May run in a thread.
    """
    shown = appears_in([message.text for message in view.item_messages])
    return memory_block(hits, view.counter, tokens, top_k, shown, notes=notes_for(view.transcript)) or ""
