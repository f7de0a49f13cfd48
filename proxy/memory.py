"""The memory of sessions for an operator, who may list, search, add and delete cards as JSON documents.

A list has the cards of all branches. A search covers one branch: its stored messages, and the cards that it may see.
A scope is read and changed like a session, by its own key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from proxy.errors import BadRequest
from proxy.sessions.cards import with_card, without_cards
from proxy.sessions.histories import StoredHistory, messages_on, read_in_thread
from proxy.sessions.session import MAIN, Branch, Session, has_node
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreKey
from strategies.core.cards import LONGEST, TYPES, MemoryCard, to_json
from strategies.core.messages import Reader
from strategies.core.parsing import normalized
from strategies.core.transcript import Transcript
from strategies.memory.ranking import Hit, Index, card_entry, message_entries

SOURCE = "person"
TOP_K = 5
MAX_HITS = 100
MAX_TAGS = 32
MAX_IMPORTED = 500
EXPORTED = ("content", "type", "tags", "created_at", "source")

Document = dict[str, Any]


@dataclass(slots=True)
class MemoryAdmin:
    """The memory of sessions; one per app. `ttl` is in seconds.

    Methods return None if there is no such session, and raise `StoreError`.
    """

    stored: StoredSessions
    reader: Reader
    ttl: int
    clock: Callable[[], float]

    async def list_cards(self, key: StoreKey) -> Document | None:
        session = await self.stored.in_time(self.stored.load(key))
        if session is None:
            return None
        cards = await asyncio.to_thread(session.cards)
        return {"object": "list", "data": [card_document(card, session) for card in cards]}

    async def export_cards(self, key: StoreKey) -> list[Document] | None:
        """The cards, oldest first, in the export format of the reference document and with no other members.

        `source` is left out if it is not known.
        """
        session = await self.stored.in_time(self.stored.load(key))
        if session is None:
            return None
        cards = to_json(await asyncio.to_thread(session.cards))
        return [{name: card[name] for name in EXPORTED if name in card} for card in cards]

    async def search(self, key: StoreKey, query: str, name: str = MAIN, top_k: int = TOP_K) -> Document | None:
        """The messages and cards of a branch that match a query, best first; None also if there is no such branch."""
        patience = self.stored.patience()
        session = await patience.read(self.stored.load(key))
        branch = next((each for each in session.branches if each.name == name), None) if session else None
        # A scope has no branches, and neither has a session with cards only; both can be searched.
        if session is None or (branch is None and name != MAIN):
            return None
        blocks = await patience.read(self.stored.blocks(key, session))
        hits = await read_in_thread(self._hits, session, branch, blocks, query)
        return {"object": "list", "data": [_hit(hit) for hit in hits[:top_k]]}

    def _hits(self, session: Session, branch: Branch | None, blocks: Mapping[str, bytes], query: str) -> list[Hit]:
        stored = StoredHistory.of(blocks, session.dialect)
        transcript = Transcript.of(messages_on(session, branch, stored, self.reader))
        digests = transcript.digests
        standing = [record for record in session.condensations if has_node(digests, record.covered, record.digest)]
        index = Index(card_entry(card.id, card) for card in session.cards(standing))
        for place, message in enumerate(transcript.chain):
            index.add(message_entries(digests[place].hex(), message, place))
        return index.search(query, MAX_HITS)

    async def add(self, key: StoreKey, written: object, *, replaces: str | None = None) -> Document | None:
        """Adds a card that a person wrote, in place of the one with the id `replaces`. Raises `BadRequest`.

        Returns the card that says so then, which may be an earlier one; None also if there is no card to replace.
        """
        card = parse_card(written, self.clock())

        def changed(session: Session | None) -> Session | None:
            if session and replaces is not None:
                has_card = any(each.id == replaces for each in session.cards())
                session = without_cards(session, {replaces}) if has_card else None
            return session and with_card(session, card)

        session = await self._change(key, changed)
        if session is None:
            return None
        return card_document(next(known for known in session.cards() if card.repeats(known)), session)

    async def import_cards(self, key: StoreKey, written: object) -> Document | None:
        """Adds the cards of an export in the format of the reference document; those that are there already stay.

        Returns how many were added, and how many were there. Raises `BadRequest`, which names a bad card by its place.
        """
        cards = parse_export(written, self.clock())
        added = 0

        def changed(session: Session | None) -> Session | None:
            nonlocal added
            if session is None:
                return None
            there = {normalized(card.content) for card in session.cards()}
            new = list({name: card for card in cards if (name := normalized(card.content)) not in there}.values())
            added = len(new)
            return reduce(with_card, new, session)

        session = await self._change(key, changed)
        return {"object": "imported", "added": added, "known": len(cards) - added} if session else None

    async def forget(self, key: StoreKey, card: str | None = None) -> Document | None:
        """Deletes all cards, or one and those that say the same. Returns how many; None also if it is not there."""
        gone = 0

        def changed(session: Session | None) -> Session | None:
            nonlocal gone
            seen = session.cards() if session else []
            ids = {each.id for each in seen if card in (None, each.id)}
            if session is None or (card is not None and not ids):
                return None
            left = without_cards(session, ids)
            gone = len(seen) - len(left.cards())
            return left

        session = await self._change(key, changed)
        return {"object": "forgotten", "cards": gone} if session else None

    async def _change(self, key: StoreKey, change: Callable[[Session | None], Session | None]) -> Session | None:
        changing = self.stored.change(key, change, self.ttl)
        return await self.stored.write(changing, self.stored.patience())


def parse_card(written: object, now: float) -> MemoryCard:
    """The card in a JSON object that a person wrote; `now` is in seconds since the epoch. Raises `BadRequest`."""
    if not isinstance(written, Mapping) or not written.keys() <= {"content", "type", "tags"}:
        raise BadRequest("A card is a JSON object with 'content', 'type' and 'tags'.")
    content, kind, tags = written.get("content"), written.get("type", "fact"), written.get("tags", [])
    if not isinstance(content, str) or not content.strip() or len(content) > LONGEST:
        raise BadRequest(f"'content' must be a text of 1-{LONGEST} characters.", param="content")
    if kind not in TYPES:
        raise BadRequest(f"'type' must be one of {', '.join(TYPES)}.", param="type")
    if not _are_tags(tags):
        raise BadRequest(f"'tags' must be a list of at most {MAX_TAGS} texts.", param="tags")
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return MemoryCard(" ".join(content.split()), kind, tuple(dict.fromkeys(tags)), at, SOURCE)


def parse_export(written: object, now: float) -> list[MemoryCard]:
    """The cards of a JSON array in the format of the reference document. Raises `BadRequest`.

    Members that the document does not name are left out.
    """
    if not isinstance(written, list) or len(written) > MAX_IMPORTED:
        raise BadRequest(f"Memory is imported as a JSON array of at most {MAX_IMPORTED} cards.")
    cards = []
    for place, document in enumerate(written):
        try:
            cards.append(_exported_card(document, now))
        except BadRequest as error:
            raise BadRequest(f"Card {place}: {error}", param=f"[{place}].{error.param or ''}".rstrip(".")) from None
    return cards


def _exported_card(written: object, now: float) -> MemoryCard:
    if not isinstance(written, Mapping):
        raise BadRequest("a card is a JSON object.")
    card = parse_card({name: written[name] for name in ("content", "type", "tags") if name in written}, now)
    at, source = written.get("created_at", card.created_at), written.get("source", SOURCE)
    try:
        datetime.fromisoformat(at)
    except (TypeError, ValueError):
        raise BadRequest("'created_at' must be an ISO 8601 time.", param="created_at") from None
    if not isinstance(source, str) or len(source) > LONGEST:
        raise BadRequest(f"'source' must be a text of at most {LONGEST} characters.", param="source")
    return replace(card, created_at=at, source=source)


def _are_tags(tags: object) -> bool:
    if not isinstance(tags, Sequence) or isinstance(tags, str) or len(tags) > MAX_TAGS:
        return False
    return all(isinstance(tag, str) and 0 < len(tag) <= LONGEST for tag in tags)


def card_document(card: MemoryCard, session: Session) -> Document:
    """A card with all its members, its id, and how many messages its condensation covers."""
    covered = next((each.covered for each in session.condensations if each.id == card.condensation), None)
    (told,) = to_json((card,))
    empty: Document = {"source": "", "condensation": "", "messages": [], "places": []}
    return {"id": card.id, "covered": covered, **empty, **told}


def _hit(hit: Hit) -> Document:
    """A hit, which is a card or a message; `place` counts the messages of the branch from 0."""
    entry = hit.entry
    document = {"score": round(hit.score, 4), "role": entry.role.value, "text": entry.text}
    if entry.card:
        return {"object": "card", "id": entry.key, "type": entry.card, **document}
    return {"object": "message", "place": entry.place, "part": entry.part, "parts": entry.parts, **document}
