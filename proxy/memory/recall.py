"""Recall: searching what was said in a conversation.

A client sends its whole history, and what it has dropped is put back from the store: so what can be found is the
transcript at hand. Its index is kept in memory for the sessions that were used last, and grows by what is new. A search
sees only what leads up to this request: entries are keyed by the chain, so what was edited away, and what belongs to
another branch, is not found. The cards of condensations that stand in the chain are searched with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.condensing.allowance import ON_EMBEDDINGS, left_by_votes, spent
from proxy.memory.meaning import Asker, Meanings
from proxy.memory.vectors import Vector
from proxy.request.intake import Case
from proxy.store.base import SessionKey
from strategies.core.cards import MemoryCard
from strategies.core.transcript import Transcript
from strategies.memory.passages import Entry, card_entry, message_entries
from strategies.memory.ranking import Hit, Index

MOST_SESSIONS = 64
MOST_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class Searchable:
    """What a request may search: its history, and the cards that it sees.

    `key` is the session whose index is used; None for an index that is thrown away, which no other request meets.
    `asker` is on whose behalf vectors are made, None where none may be.
    """

    key: SessionKey | None
    history: Transcript
    cards: Callable[[], Sequence[MemoryCard]]
    asker: Asker | None = None

    @classmethod
    def of(cls, case: Case) -> Searchable:
        """What is searched for a case: one of which nothing may be kept leaves nothing in the memory either."""
        if not case.keeps:
            return cls(None, case.history, case.cards)
        asker = Asker(
            case.recognised.apart(),
            lambda background: case.caller(background=background),
            lambda share: left_by_votes(case, share),
            spent(case, ON_EMBEDDINGS),
        )
        return cls(case.recognised.key, case.history, case.cards, asker)

    def nodes(self) -> list[str]:
        """The chain nodes of the history."""
        return [digest.hex() for digest in self.history.digests]

    def entries(self) -> list[Entry]:
        """The entries of the cards."""
        return [card_entry(card.id, card) for card in self.cards()]

    def allowed(self, nodes: Sequence[str], cards: Sequence[Entry]) -> set[str]:
        """The keys of what may be found: all but the last user message, which asks itself."""
        asking = self.history.last_user
        return {*(node for place, node in enumerate(nodes) if place != asking), *(entry.key for entry in cards)}


class _Indexed:
    """The index of one session, and the chain nodes that are in it."""

    def __init__(self) -> None:
        self.index = Index()
        # Held in the thread: a request that leaves cannot stop its thread, and the next one must not write beside it.
        self._lock = threading.Lock()
        self._nodes: set[str] = set()

    def learn(self, transcript: Transcript, nodes: list[str]) -> None:
        """Adds the messages that are not in it yet."""
        with self._lock:
            self._learn(transcript, nodes)

    def _learn(self, transcript: Transcript, nodes: list[str]) -> None:
        for place, node in enumerate(nodes):
            if node not in self._nodes:
                self._nodes.add(node)
                self.index.add(message_entries(node, transcript.chain[place], place))

    def search(self, searched: Searchable, query: str) -> list[Hit]:
        """What the query is about, best first; the last user message asks itself."""
        transcript, nodes, cards = searched.history, searched.nodes(), searched.entries()
        with self._lock:
            self._learn(transcript, nodes)
            self.index.add(cards)
            return self.index.search(query, allowed=searched.allowed(nodes, cards))

    def visible(self, searched: Searchable) -> list[Hit]:
        """All that may be found, in the order in which it was said, cards behind it; it has been learned before."""
        nodes, cards = searched.nodes(), searched.entries()
        with self._lock:
            self.index.add(cards)
            return self.index.visible(searched.allowed(nodes, cards))


class Recall:
    """The indexes of the sessions that were used last; one per app. With `meanings` they rank by meaning too."""

    def __init__(self, meanings: Meanings | None = None) -> None:
        self._meanings = meanings
        self._indexed: OrderedDict[SessionKey, _Indexed] = OrderedDict()

    async def search(self, searched: Searchable, query: str, wait: float = 0.0) -> list[Hit]:
        """What the query is about, best first. Its vector may take `wait` seconds, where any is wanted."""
        indexed = self._of(searched.key)
        hits, vector = await asyncio.gather(
            asyncio.to_thread(indexed.search, searched, query), self._vector(searched.asker, query, wait)
        )
        self._bounded()
        if self._meanings is None or searched.key is None or vector is None:
            return hits
        visible = await asyncio.to_thread(indexed.visible, searched)
        return await self._meanings.ranked(searched.key, vector, hits, visible)

    async def learn(self, searched: Searchable) -> None:
        """Reads what is new in a history already now, so that the next search need not."""
        indexed = self._of(searched.key)
        await asyncio.to_thread(indexed.learn, searched.history, searched.nodes())
        self._bounded()
        if self._meanings is not None and searched.asker is not None:
            visible = await asyncio.to_thread(indexed.visible, searched)
            await self._meanings.learn(searched.asker, [hit.entry.text for hit in visible])

    async def _vector(self, asker: Asker | None, query: str, wait: float) -> Vector | None:
        if self._meanings is None or asker is None:
            return None
        return await self._meanings.query(asker, query, wait)

    def _of(self, key: SessionKey | None) -> _Indexed:
        if key is None:
            return _Indexed()
        indexed = self._indexed.setdefault(key, _Indexed())
        self._indexed.move_to_end(key)
        return indexed

    def _bounded(self) -> None:
        """Forgets the indexes that were not used for the longest time; the newest stays."""
        while len(self._indexed) > 1 and (len(self._indexed) > MOST_SESSIONS or self._entries() > MOST_ENTRIES):
            self._indexed.popitem(last=False)

    def _entries(self) -> int:
        return sum(len(each.index) for each in self._indexed.values())
