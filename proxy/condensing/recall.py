"""Memory of a conversation: searches what has left the view, and puts what it finds before each user message.

Searches. A client sends its whole history, or the store puts back what it dropped, so a search covers the transcript at
hand: those of its messages that the view does not show, and the cards of its condensations. For a block, messages in
the view and a summary's own words compete with them. Nothing is indexed before something is searched for. Then the
messages that are not in it yet are added to the index of the conversation, the newest first and only so many at a time;
all forks after its first condensation share it. The key of an entry is the message's digest in the chain, and a request
finds the entries of its own chain only.

Blocks. A memory block tells what was said earlier about a user message. It is chosen when a view first hides something
from that message, kept with the session, and stays at its place, byte for byte, until a condensation takes it in. So
the upstream's prompt cache stays valid, and so does reasoning that is bound to the messages before it. It repeats what
the record quotes, but nothing else that the view shows, earlier blocks included, nor what a strategy dropped on
purpose. Where a strategy wants it (`rolling.block = turn`), it leaves with the next user message instead.

All blocks and the offer of the tool together have at most half of the tokens that the condensation saves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from proxy.condensing.reasoning import fold_view
from proxy.condensing.turn import Decision, RequestContext
from proxy.conversations.cards import combined_cards
from proxy.conversations.drops import says_dropped
from proxy.conversations.searching import NO_OFFER
from proxy.conversations.session import MAX_PATCHES, Session, has_node
from proxy.http.admission import Place
from proxy.reasons import Action
from proxy.runtime.owned_tasks import message_load, offload
from proxy.store.base import StoreKey
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation
from strategies.core.messages import ROOT
from strategies.core.pieces import Literal, Overlay, PieceKind, is_carried, is_memory, is_record
from strategies.core.transcript import Transcript
from strategies.core.view import View
from strategies.memory.asking import UNASKED, asks, users_own, worth_showing
from strategies.memory.block import appears_in, block_room, memory_block, notes_for
from strategies.memory.ranking import NOWHERE, Entry, Hit, Index, card_entry, expanded, message_entries

MIN_ROOM = 32
"""Tokens below which no block is chosen."""
ROUND = 64
"""Tokens that are left to a hidden round in which nothing is found."""
MOST_BLOCKS = MAX_PATCHES // 2
"""No block is put in beside so many blocks and hidden rounds: a session that is full would drop one that stands."""
MAX_INDEXES = 64
MAX_ENTRIES = 16_000
"""Entries of all indexes together; one takes at most `ENTRY_BYTES` with its text and its share of the index."""
MAX_NEW, ENTRY_BYTES, PART_TOKENS = 2_000, 4_096, 100
"""Entries that one search adds, later ones the rest; bytes of memory of one, and tokens of a text for each."""


class Searchable(NamedTuple):
    """What a request may search: the messages of its history that its view hides, and the cards that it may see.

    `key` names the index that is used; if it is None, the index is dropped after the request, and no other request sees
    it.
    """

    key: StoreKey | None
    history: Transcript
    places: Sequence[int]
    """The chain indices of those messages, in order."""
    cards: Callable[[], Sequence[MemoryCard]]
    place: Place | None = None
    """Where the memory is counted that an index takes; None for a search that no request has asked for."""

    @classmethod
    def of(cls, context: RequestContext, view: View) -> Searchable:
        """What a request with this view may search; a request that may not be stored leaves nothing in memory."""
        hidden, cards = hidden_by(view), partial(cards_of, context)
        if not context.may_store:
            return cls(None, context.history.transcript, hidden, cards, context.request.place)
        # The first condensation is the same in all forks that it stands in.
        first = min((made.covered for made in _condensed(context) if made.standing), default=0)
        family = context.history.transcript.digests[first - 1].hex() if first else context.recognised.key.name
        key = StoreKey(context.request.tenant, family)
        return cls(key, context.history.transcript, hidden, cards, context.request.place)

    def has_room(self) -> bool:
        """Whether there is memory for what a search may add to an index, which is then held."""
        entries = min(len(self.places) + self.history.tokens // PART_TOKENS, MAX_NEW)
        return self.place is None or self.place.spare(entries * ENTRY_BYTES)

    def nodes(self) -> list[tuple[int, str]]:
        """The place of each message, and its key."""
        return [(place, self.history.digests[place].hex()) for place in self.places]


def _condensed(context: RequestContext) -> list[Condensation]:
    """All condensations of a request's history."""
    digests = context.history.transcript.digests
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
        self._nodes: dict[str, int] = {}  # with their numbers of entries

    def learn(self, transcript: Transcript, nodes: list[tuple[int, str]]) -> None:
        """Adds the newest of the messages that are not in the index yet."""
        with self._lock:
            if len(self.index) > MAX_ENTRIES:  # most of it may be messages that the client has edited away
                self.index, self._nodes = Index(), {}
            added, left, room = list[list[Entry]](), MAX_NEW, MAX_ENTRIES * 3 // 4
            for place, node in reversed(nodes):
                if node not in self._nodes:
                    entries = message_entries(node, transcript.chain[place], place)[:MAX_NEW]
                    left -= len(entries)
                    if left < 0:
                        break
                    self._nodes[node] = len(entries)
                    added.append(entries)
                room -= self._nodes[node]
                if room <= 0:
                    break
            self.index.add(chain.from_iterable(reversed(added)))

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
        """The hits of a query, best first; a query that is a handle finds its message only.

        Without room for the index nothing is found.
        """
        found = expanded(query, searchable.history, searchable.places)
        if found or not searchable.has_room():
            return found
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


class Injector:
    """Chooses what memory adds to views, and puts it in; one per app."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall

    async def inject(self, decision: Decision) -> Decision:
        """The decision with the offer of the tool and a new block, as far as its condensation pays for them."""
        context = decision.context
        # A view that was made without the store has no recorded condensation, so it cannot be folded again.
        if not any(context.policy.memory) or context.recognised.failure:
            return decision
        if decision.applied is None and context.offer is NO_OFFER:
            return decision
        context = context.with_recorded(decision.applied)
        allowance = context.saved_by(decision.applied) // 2
        allowance -= sum(item.message.tokens for item in decision.view.front if is_memory(item.piece))
        context = context.offering(context.offerable.within(allowance) if allowance > 0 else NO_OFFER)
        decision = _folded(decision._replace(offer=context.offer), context)
        saved, a_search = context.saved_by(decision.applied), ROUND if context.offer.is_made else 0
        allowance = min(allowance, saved - decision.view.memory_tokens - a_search) - context.offer.tokens
        is_wanted = context.aside is None and context.shows_blocks(decision.applied)
        if not (is_wanted and _has_room_for_block(decision)):
            return decision
        block = await self._choose_block(decision.view, context, allowance)
        return decision if block is None else _with_block(decision, context, block)

    async def _choose_block(self, view: View, context: RequestContext, allowance: int) -> Overlay | None:
        """The block for the last user message, of at most `allowance` tokens; None if nothing is worth it."""
        budget, policy, history = context.sized.budget, context.policy, context.history.transcript
        last = history.last_user
        if last is None or budget is None:
            return None
        free = budget.headroom(view.tokens) - budget.least_headroom
        left = min(block_room(budget.window, policy.block_tokens), allowance, free)
        if left < MIN_ROOM:
            return None
        words = users_own(history.chain[last].text)
        if not words:
            return None
        earlier = Searchable.of(context, view)._replace(places=range(last))
        hits = await self._recall.search(earlier, words)
        unwanted = {index for made in _condensed(context) if made.standing for index in made.dropped}
        wanted = [hit for hit in hits if hit.entry.place not in unwanted]
        if drops := context.recognised.drops:
            wanted = [hit for hit in wanted if not says_dropped(hit.entry.text, drops)]
        load = message_load(view.size, view.tokens)
        raw = await offload(load, _block_text, words, wanted, view, left, policy.block_passages)
        anchor = history.digests[last - 1] if last else ROOT
        pieces = (Literal(raw, PieceKind.MEMORY),)
        return Overlay(anchor, last, 0, pieces, view.covered_count, history.chain[last].digest) if raw else None


def _has_room_for_block(decision: Decision) -> bool:
    """Whether a block may go before the last user message: it is new, or the view is, and nothing is there yet.

    Among the messages that an opaque head has kept it would cost their reasoning.
    """
    history, covered = decision.context.history.transcript, decision.view.covered_count
    last, is_condensed = history.last_user, decision.action is Action.CONDENSED and not decision.view.is_opaque
    if last is None or last < covered or not (last == len(history.chain) - 1 or is_condensed):
        return False
    patches = [each for each in decision.context.history.measured.transcript.patches if each.stands_behind(covered)]
    return len(patches) < MOST_BLOCKS and all(patch.at != last or patch.is_carried for patch in patches)


def _with_block(decision: Decision, context: RequestContext, block: Overlay) -> Decision:
    """The decision with a new block in its view, unless that were longer than the client's list."""
    patches = tuple(sorted((*decision.view.transcript.patches, block), key=attrgetter("order")))
    context = context.with_transcripts(lambda transcript: transcript.having(patches=patches))
    after = _folded(decision, context)._replace(memory_patch=block)
    return after if after.tokens_after <= decision.context.history.sent.tokens else decision


def _folded(decision: Decision, context: RequestContext) -> Decision:
    """The decision with its view folded again, with the offer of the tool and with what memory inserts."""
    return decision.with_view(fold_view(context, decision.applied))


def _block_text(words: str, hits: Sequence[Hit], view: View, tokens: int, top_k: int) -> str:
    """The JSON text of a block of at most `tokens`, which repeats nothing that the view shows; "" if none is worth it.

    What only the record repeats counts as hidden. May run in a thread.
    """
    records = [item.message.text for item in view.front if is_record(item.piece) or is_carried(item.piece)]
    shown = appears_in([message.text for message in view.item_messages if message.text not in records])
    hidden = {NOWHERE, *hidden_by(view)}
    wanted = worth_showing(words, hits, lambda hit: hit.entry.place in hidden and not shown(hit.entry), records)
    room = tokens if asks(words) else min(tokens, UNASKED)
    return memory_block(wanted, view.counter, room, top_k, notes=notes_for(view.transcript)) or ""
