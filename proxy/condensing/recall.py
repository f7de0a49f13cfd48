"""Memory of a conversation: searches its messages and cards, and puts what it finds before each user message.

Searches. A client sends its whole history, or the store puts back what it dropped, so a search covers the transcript at
hand. The indexes of the most recently used sessions are kept in memory, and new messages are added to them. A search
finds only messages that lead up to this request: the key of an entry is the message's digest in the chain, so messages
that were edited away or belong to another branch are not found. The cards of the condensations in the chain are
searched too.

Blocks. A memory block tells what was said earlier about a user message. It is chosen when the message is new, kept with
its branch, and is byte for byte the same in every view of that turn, so that the upstream's prompt cache of the turn
stays valid. It leaves with the next user message. It never repeats what the view shows. There is none if the view hides
nothing, or if nothing relevant is found.

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

from proxy.condensing.context import ON_EMBEDDINGS, RequestContext
from proxy.condensing.decision import Decision
from proxy.memory.meaning import Asker, Meanings, Vector
from proxy.runtime.owned_tasks import OwnedTasks, message_load, offload
from proxy.sessions.session import MemoryBlock
from proxy.settings.tables import MemorySettings
from proxy.store.base import StoreKey
from strategies.core.cards import MemoryCard
from strategies.core.digest import ROOT
from strategies.core.pieces import Literal, Overlay, PieceKind, is_memory
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.memory.block import appears_in, block_room, memory_block, notes_for
from strategies.memory.ranking import Hit, Index, card_entry, message_entries

MIN_ROOM = 32
"""Tokens below which no block is chosen."""
MAX_SESSIONS = 64
MAX_ENTRIES = 16_000
"""Entries of all indexes together; one takes 1 to 4 KB with its text and its share of the index."""


@dataclass(frozen=True, slots=True)
class Searchable:
    """What a request may search: its history, and the cards that it may see.

    `key` names the session whose index is used; if it is None, the index is dropped after the request, and no other
    request sees it. `asker` is the request on whose behalf vectors are made; None if none may be made.
    """

    key: StoreKey | None
    history: Transcript
    cards: Callable[[], Sequence[MemoryCard]]
    asker: Asker | None = None

    @classmethod
    def of(cls, context: RequestContext) -> Searchable:
        """What a request may search; a request that may not be stored leaves nothing in memory."""
        if not context.may_store:
            return cls(None, context.history, context.cards)
        asker = Asker(
            context.recognised.with_fresh_patience(),
            lambda background: context.caller(background=background),
            context.allowance_after_votes,
            context.spent(ON_EMBEDDINGS),
        )
        return cls(context.recognised.key, context.history, context.cards, asker)

    def nodes(self) -> list[str]:
        return [digest.hex() for digest in self.history.digests]


class _SessionIndex:
    """The index of one session, and the chain nodes that are in it."""

    def __init__(self) -> None:
        self.index = Index()
        # Held by the thread, which continues if its request is cancelled; the next request must not write meanwhile.
        self._lock = threading.RLock()
        self._nodes: set[str] = set()
        self._most = MAX_ENTRIES

    def learn(self, transcript: Transcript, nodes: list[str]) -> None:
        """Adds the messages that are not in the index yet."""
        with self._lock:
            is_full = len(self.index) > self._most
            if is_full:  # most of it may be messages that the client has edited away
                self.index, self._nodes = Index(), set()
            for place, node in enumerate(nodes):
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

    def visible(self, searchable: Searchable) -> list[Hit]:
        """All entries that may be found: messages in their order, then cards. Call `learn` before."""
        with self._lock:
            return self.index.visible(self._allowed(searchable, searchable.nodes()))

    def _allowed(self, searchable: Searchable, nodes: list[str]) -> set[str]:
        """The keys of the entries that may be found, including cards; not the last user message, the question."""
        cards, question = [card_entry(card.id, card) for card in searchable.cards()], searchable.history.last_user
        self.index.add(cards)
        return {*(node for place, node in enumerate(nodes) if place != question), *(entry.key for entry in cards)}


class Recall:
    """The indexes of the most recently used sessions; one per app. With `meanings` hits are ranked by meaning too."""

    def __init__(self, meanings: Meanings | None = None) -> None:
        self._meanings = meanings
        self._indexed: OrderedDict[StoreKey, _SessionIndex] = OrderedDict()

    async def search(self, searchable: Searchable, query: str, wait: float = 0.0) -> list[Hit]:
        """The hits of a query, best first; its vector, if one is used, is waited for `wait` seconds."""
        indexed = self._of(searchable.key)
        hits, vector = await asyncio.gather(
            asyncio.to_thread(indexed.search, searchable, query), self._vector(searchable.asker, query, wait)
        )
        self._evict()
        if self._meanings is None or searchable.key is None or vector is None:
            return hits
        visible = await asyncio.to_thread(indexed.visible, searchable)
        return await self._meanings.rank(searchable.key, vector, hits, visible)

    async def learn(self, searchable: Searchable) -> None:
        """Indexes the new messages of a history, so that the next search need not, and has their vectors made."""
        indexed = self._of(searchable.key)
        await asyncio.to_thread(indexed.learn, searchable.history, searchable.nodes())
        self._evict()
        if self._meanings is not None and searchable.asker is not None:
            visible = await asyncio.to_thread(indexed.visible, searchable)
            await self._meanings.learn(searchable.asker, [hit.entry.text for hit in visible])

    async def _vector(self, asker: Asker | None, query: str, wait: float) -> Vector | None:
        if self._meanings is None or asker is None:
            return None
        return await self._meanings.query(asker, query, wait)

    def _of(self, key: StoreKey | None) -> _SessionIndex:
        if key is None:
            return _SessionIndex()
        indexed = self._indexed.setdefault(key, _SessionIndex())
        self._indexed.move_to_end(key)
        return indexed

    def _evict(self) -> None:
        """Drops the least recently used indexes beyond the bounds; the newest stays."""
        while len(self._indexed) > 1 and (len(self._indexed) > MAX_SESSIONS or self._entries() > MAX_ENTRIES):
            self._indexed.popitem(last=False)

    def _entries(self) -> int:
        return sum(len(indexed.index) for indexed in self._indexed.values())


def with_standing_block(context: RequestContext) -> RequestContext:
    """The context with the block that an earlier request of this turn has shown, if one has, and with its tokens."""
    branch, history = context.branch, context.history
    if branch is None or history.last_user is None or branch.block.node != history.digests[history.last_user].hex():
        return context
    block = branch.block
    return context._replace(memory_block=block, block_tokens=context.counter.message(json.loads(block.raw)))


def _overlay_of(block: MemoryBlock, context: RequestContext) -> Overlay:
    """The overlay that puts the block into a view."""
    at = context.history.last_user or 0
    anchor = context.history.digests[at - 1] if at else ROOT
    return Overlay(anchor, at, 0, (Literal(block.raw, PieceKind.MEMORY),))


class Injector:
    """Chooses blocks and puts them into views; one per app."""

    def __init__(self, recall: Recall, settings: MemorySettings, tasks: OwnedTasks) -> None:
        self._recall = recall
        self._settings = settings
        self._tasks = tasks

    async def inject(self, decision: Decision, context: RequestContext) -> Decision:
        """The decision with this turn's block in its view: the one that the turn has shown already, or a new one."""
        # A view that was made without the store has no recorded condensation, so it cannot be folded again.
        if not context.policy.memory.inject or context.policy.budget is None or context.recognised.failure:
            return decision
        if context.keeps_blocks:
            return await self._inject_for_good(decision, context)
        block = context.memory_block or await self._choose_block(decision.view, context)
        if block is None and not any(is_memory(item.piece) for item in decision.view.front):
            return decision._replace(memory_block=MemoryBlock())
        heads = (decision.applied.overlay,) if decision.applied else ()
        inserted = (_overlay_of(block, context),) if block else ()
        transcript = context.transcript_under(decision.applied)
        view = fold(transcript, (*heads, *inserted), context.framing, context.counter)
        shown = block if block and any(is_memory(item.piece) for item in view.front) else MemoryBlock()
        return decision.with_view(view)._replace(memory_block=shown)

    async def _inject_for_good(self, decision: Decision, context: RequestContext) -> Decision:
        """The decision with a block before a new user message, as a patch that stays in later transcripts."""
        last, transcript = context.history.last_user, context.transcript_under(decision.applied)
        is_new = last is not None and 0 < last == len(transcript.chain) - 1
        if not is_new or any(patch.at == last for patch in transcript.patches):
            return decision
        block = await self._choose_block(decision.view, context)
        if block is None:
            return decision
        patch = _overlay_of(block, context)
        heads = (decision.applied.overlay,) if decision.applied else ()
        view = fold(transcript.having(patches=(*transcript.patches, patch)), heads, context.framing, context.counter)
        return decision.with_view(view)._replace(memory_patch=patch)

    def follow(self, context: RequestContext) -> None:
        """Indexes the new messages of a conversation in the background, once its reply has been sent."""
        if context.policy.memory.tool or context.may_inject:
            self._tasks.start(self._recall.learn(Searchable.of(context)), ("learn", context.recognised.key))

    async def _choose_block(self, view: View, context: RequestContext) -> MemoryBlock | None:
        """The block for a new user message; None if nothing is found, or there is no room."""
        last, budget = context.history.last_user, context.budget
        free = budget.headroom(view.tokens) - budget.least_headroom
        hides = view.covered_count > 0 or bool(view.transcript.unknown)
        left = min(block_room(budget.window, context.policy.injection.max_tokens), free)
        if last is None or left < MIN_ROOM or not (hides or context.has_foreign_cards):
            return None
        question, wait = context.history.chain[last].text, self._settings.embeddings_inject_wait
        hits = await self._recall.search(Searchable.of(context), question, wait)
        load = message_load(view.size, view.tokens)
        raw = await offload(load, _block_text, hits, view, left, context.policy.injection.top_k)
        return MemoryBlock(context.history.digests[last].hex(), raw) if raw is not None else None


def _block_text(hits: Sequence[Hit], view: View, tokens: int, top_k: int) -> str | None:
    """The JSON text of a block of at most `tokens`, which repeats nothing that the view shows. May run in a thread."""
    shown = appears_in([message.text for message in view.item_messages])
    return memory_block(hits, view.counter, tokens, top_k, shown, notes=notes_for(view.transcript))
