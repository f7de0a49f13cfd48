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
from collections.abc import Sequence

from proxy.intake import Case
from proxy.store.base import SessionKey
from strategies.core.cards import MemoryCard
from strategies.core.transcript import Transcript
from strategies.memory.passages import card_entry, message_entries
from strategies.memory.ranking import Hit, Index

MOST_SESSIONS = 64
MOST_ENTRIES = 200_000


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

    def search(self, transcript: Transcript, cards: Sequence[MemoryCard], query: str) -> list[Hit]:
        """What of the transcript, or of cards, the query is about, best first; the last user message asks itself."""
        nodes = [digest.hex() for digest in transcript.digests]
        entries = [card_entry(card.id, card) for card in cards]
        allowed = {*nodes, *(entry.key for entry in entries)}
        if transcript.last_user is not None:
            allowed.discard(nodes[transcript.last_user])
        with self._lock:
            self._learn(transcript, nodes)
            self.index.add(entries)
            return self.index.search(query, allowed=allowed)


class Recall:
    """The indexes of the sessions that were used last; one per app."""

    def __init__(self) -> None:
        self._indexed: OrderedDict[SessionKey, _Indexed] = OrderedDict()

    async def search(self, case: Case, query: str) -> list[Hit]:
        """What in the history of a request the query is about, best first."""
        indexed = self._of(case.found.key)
        hits = await asyncio.to_thread(lambda: indexed.search(case.history, case.cards(), query))
        self._bounded()
        return hits

    async def learn(self, case: Case) -> None:
        """Reads what is new in the history of a request already now, so that the next search need not."""
        indexed = self._of(case.found.key)
        nodes = [digest.hex() for digest in case.history.digests]
        await asyncio.to_thread(indexed.learn, case.history, nodes)
        self._bounded()

    def _of(self, key: SessionKey) -> _Indexed:
        indexed = self._indexed.setdefault(key, _Indexed())
        self._indexed.move_to_end(key)
        return indexed

    def _bounded(self) -> None:
        """Forgets the indexes that were not used for the longest time; the newest stays."""
        while len(self._indexed) > 1 and (len(self._indexed) > MOST_SESSIONS or self._entries() > MOST_ENTRIES):
            self._indexed.popitem(last=False)

    def _entries(self) -> int:
        return sum(len(each.index) for each in self._indexed.values())
