"""Memory cards that a session's own condensations did not bring: those a person changed, and shared scopes. Pure.

A card that came with a condensation stays in that record, which never changes. If a person deletes it, the session
lists it as forgotten, and it is no longer shown. The same happens to cards that say the same, because another
condensation may bring the card again. A card that a person writes is seen on all branches; if it repeats a forgotten
card, that card is shown again.

A scope is stored as a session with cards and no history, under a key that no session id leads to. The cards of a
request's condensation are also put into its scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from proxy.conversations.session import Session, session_key
from proxy.errors import BadRequest
from proxy.store.base import StoreKey
from strategies.core.cards import LONGEST, TYPES, MemoryCard, distinct
from strategies.core.messages import dump
from strategies.core.pieces import Literal, blocks_in

SOURCE = "X-Condenser-Memory-Scope"
SHOWN = "scope:"  # the prefix of a scope's name in its id
MAX_CARDS = 500
PERSON = "person"
MAX_TAGS = 32
MAX_IMPORTED = 500


def scope_key(tenant: str, id: str) -> StoreKey:
    """The key of a scope with the id `scope:NAME`; no session's id leads to it."""
    return StoreKey(tenant, session_key(id, SOURCE))


def with_shared(stored: Session | None, scope: Session, cards: Sequence[MemoryCard], now: float) -> Session:
    """A scope with more cards, created if it is not stored yet; `now` is in seconds since the epoch."""
    before = stored or scope._replace(created_at=now)
    before = before if scope.traits else before._replace(traits=scope.traits)  # its owner has been proved
    return before._replace(added_cards=tuple(distinct([*before.added_cards, *cards])[-MAX_CARDS:]))


def combined_cards(session: Session, own: Sequence[MemoryCard], scope: Session) -> list[MemoryCard]:
    """The cards of a session's history and its scope, each once, without what session or scope have forgotten."""
    told = distinct([*own, *(card for card in _all(session) if card.id in session.forgotten_ids)])
    kept = (card for card in scope.added_cards if card.id not in scope.forgotten_ids)
    return [*own, *distinct([*told, *kept])[len(told) :]]


def with_card(session: Session, card: MemoryCard) -> Session:
    others = [other for other in session.added_cards if other.id != card.id]
    again = {known.id for known in _all(session) if _alike(known, card)}
    kept = tuple(id_ for id_ in session.forgotten_ids if id_ not in again)
    return session._replace(added_cards=tuple(distinct([*others, card])[-MAX_CARDS:]), forgotten_ids=kept)


def without_cards(session: Session, ids: Collection[str]) -> Session:
    """The session without the cards of these ids, and without cards that say the same."""
    unwanted = [card for card in _all(session) if card.id in ids]
    gone = (known.id for known in _all(session) if known.id in ids or any(_alike(card, known) for card in unwanted))
    return session._replace(forgotten_ids=tuple(dict.fromkeys((*session.forgotten_ids, *gone))))


def without_blocks(session: Session, contents: Iterable[str]) -> Session:
    """The session without the memory blocks that show one of these cards."""
    texts, blocks = [dump({"": content})[5:-2] for content in contents], blocks_in(session.patches)
    raws = {patch: "".join(piece.raw for piece in patch.pieces if isinstance(piece, Literal)) for patch in blocks}
    kept = (patch for patch in session.patches if not any(text in raws.get(patch, "") for text in texts))
    return session._replace(patches=tuple(kept))


def _all(session: Session) -> Iterator[MemoryCard]:
    """All cards of a session, as they were recorded or written."""
    yield from (card for record in session.condensations for card in record.cards)
    yield from session.added_cards


def _alike(one: MemoryCard, other: MemoryCard) -> bool:
    return one.id == other.id or other.repeats(one)


# -- written by a person


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
    return MemoryCard(" ".join(content.split()), kind, tuple(dict.fromkeys(tags)), at, PERSON)


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
    at, source = written.get("created_at", card.created_at), written.get("source", PERSON)
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
