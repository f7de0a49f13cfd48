"""Searches the messages and memory cards of a conversation.

A client sends its whole history, or the store puts back what it dropped, so a search covers the transcript at hand. The
indexes of the sessions that were used last are kept in memory, and new messages are added to them. A search finds only
messages that lead up to this request: entries are keyed by their place in the chain, so messages that were edited away
or belong to another branch are not found. The cards of the condensations that stand in the chain are searchable too.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.condensing.context import ON_EMBEDDINGS, RequestContext
from proxy.memory.meaning import Asker, Meanings, Vector
from proxy.store.base import StoreKey
from strategies.core.cards import MemoryCard
from strategies.core.transcript import Transcript
from strategies.memory.ranking import Entry, Hit, Index, card_entry, message_entries

MAX_SESSIONS = 64
MAX_ENTRIES = 16_000
"""Entries of all indexes together; one takes 1 to 4 KB with its text and all that refers to it."""


@dataclass(frozen=True, slots=True)
class Searchable:
    """What a request may search: its history, and the cards that it may see.

    `key` names the session whose index is used; with None the index is dropped after the request, and no other request
    sees it. `asker` is the request on whose behalf vectors are made; None where none may be made.
    """

    key: StoreKey | None
    history: Transcript
    cards: Callable[[], Sequence[MemoryCard]]
    asker: Asker | None = None

    @classmethod
    def of(cls, context: RequestContext) -> Searchable:
        """What a request may search; one of which nothing may be kept leaves nothing in memory."""
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
        """The chain nodes of the history."""
        return [digest.hex() for digest in self.history.digests]

    def entries(self) -> list[Entry]:
        """The entries of the cards."""
        return [card_entry(card.id, card) for card in self.cards()]

    def allowed(self, nodes: Sequence[str], cards: Sequence[Entry]) -> set[str]:
        """The keys of the entries that may be found: all but the last user message, which is the question."""
        asking = self.history.last_user
        return {*(node for place, node in enumerate(nodes) if place != asking), *(entry.key for entry in cards)}


class _SessionIndex:
    """The index of one session, and the chain nodes that are in it."""

    def __init__(self) -> None:
        self.index = Index()
        # Held by the thread, which goes on if its request is cancelled; the next request must not write meanwhile.
        self._lock = threading.Lock()
        self._nodes: set[str] = set()
        self._most = MAX_ENTRIES

    def learn(self, transcript: Transcript, nodes: list[str]) -> None:
        """Adds the messages that are not in the index yet."""
        with self._lock:
            self._learn(transcript, nodes)

    def _learn(self, transcript: Transcript, nodes: list[str]) -> None:
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
        """The hits of a query, best first; the last user message, which is the question, is left out."""
        transcript, nodes, cards = searchable.history, searchable.nodes(), searchable.entries()
        with self._lock:
            self._learn(transcript, nodes)
            self.index.add(cards)
            return self.index.search(query, allowed=searchable.allowed(nodes, cards))

    def visible(self, searchable: Searchable) -> list[Hit]:
        """All entries that may be found: messages in their order, then cards. Call `learn` before."""
        nodes, cards = searchable.nodes(), searchable.entries()
        with self._lock:
            self.index.add(cards)
            return self.index.visible(searchable.allowed(nodes, cards))


class Recall:
    """The indexes of the sessions that were used last; one per app. With `meanings` hits are ranked by meaning too."""

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
        """Indexes the new messages of a history now, so that the next search need not, and has their vectors made."""
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
        return sum(len(each.index) for each in self._indexed.values())
