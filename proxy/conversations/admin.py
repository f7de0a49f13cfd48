"""Sessions and their memory for an operator, who may read and change them.

Sessions are listed, shown and deleted, their condensations taken back, their messages pinned (`Admin`). Memory cards
are listed, searched, added and deleted (`MemoryAdmin`): a list has the cards of all branches; a search covers the
stored messages of one branch, and the cards that it may see. A scope is read and changed like a session, by its own
key.

If the store keeps the text of conversations, the JSON documents here contain it. So only holders of the admin token get
them, and they are never logged.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.conversations.cards import SOURCE as SCOPE
from proxy.conversations.cards import parse_card, parse_export, with_card, without_blocks, without_cards
from proxy.conversations.codec import condensation_document, encode_verdict, record_name, reverted
from proxy.conversations.drops import drop_mark, dropped_from_ancestors, ledger_of, line_ids
from proxy.conversations.histories import StoredHistory, history_at, lines_on, messages_on, read_in_thread
from proxy.conversations.requests import RequestRecord, unpacked_all
from proxy.conversations.session import MAIN, Branch, Session, pin_for, session_key
from proxy.conversations.stored import SessionLookup, StoredSessions
from proxy.conversations.totals import MILLION, NONE
from proxy.errors import BadRequest
from proxy.store.base import StoreError, StoreKey
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.cards import MemoryCard, to_json
from strategies.core.condensation import Condensation
from strategies.core.messages import Message, Reader, Role
from strategies.core.parsing import loads, normalized
from strategies.core.transcript import Transcript, pinned_in
from strategies.dialects import DIALECTS
from strategies.memory.ranking import Hit, Index, card_entry, expanded, message_entries

Document = dict[str, Any]


class ShownSession(NamedTuple):
    document: Document
    session: Session
    requests: Sequence[RequestRecord]  # oldest first
    branches: Mapping[str, list[Message]]
    counter: Counter  # counts its messages with the default tokenizer, because sessions do not store their model


class Admin:
    """Reads and changes sessions for an operator. All methods raise `StoreError`.

    `reader` reads stored messages, and one of the `tokenizers` counts them.
    `name_of` gives the name of a tenant, and `named` the tenants that a person means by a text.
    """

    def __init__(
        self,
        stored: StoredSessions,
        reader: Reader,
        tokenizers: Tokenizers,
        name_of: Callable[[str], str | None] = lambda _: None,
        named: Callable[[str], Sequence[str]] = lambda tenant: [tenant],
    ) -> None:
        self._stored, self.name_of, self._named = stored, name_of, named
        self._reader = reader
        self._tokenizers = tokenizers

    async def list_newest(self, count: int, skipped: int = 0) -> Document:
        """A row for each of the sessions that were saved last, except the newest `skipped`; reads no other."""
        return await self.listed((await self.newest(skipped + count))[skipped:])

    async def newest(self, count: int) -> list[StoreKey]:
        """The keys of the sessions that were saved last."""
        return await self._stored.in_time(self._stored.store.newest(count))

    def names_of(self, name: str) -> set[str]:
        """The names of the sessions that a person or a client calls so."""
        return {name, *(session_key(name, dialect) for dialect in (*DIALECTS, SCOPE))}

    async def list_sessions(self, tenant: str | None = None, name: str | None = None) -> Document:
        """A row for each session, newest first: of all tenants or one, and only those named `name` if that is given."""
        keys = await self._keys(tenant)
        if name is not None:
            keys = [key for key in keys if key.name in self.names_of(name)]
        return await self.listed(keys)

    async def listed(self, keys: Iterable[StoreKey]) -> Document:
        """A row for each of these sessions that is stored, newest first."""
        loaded = [pair async for pair in self.each_session(keys)]
        rows = [self.row(key, session) for key, session in loaded if session is not None]
        unreadable = [{"tenant": key.tenant, "session": key.name} for key, session in loaded if session is None]
        rows.sort(key=lambda row: row["created_at"], reverse=True)
        return {"object": "list", "data": rows, "unreadable": unreadable}

    async def requests_of(self, key: StoreKey, session: Session) -> list[RequestRecord]:
        """The recorded requests of a session, oldest first."""
        return unpacked_all(await self._stored.in_time(self._stored.store.journal(key)), session)

    def row(self, key: StoreKey, session: Session) -> Document:
        return {**_summary(key, session), "tenant_name": self.name_of(key.tenant)}

    async def _keys(self, tenant: str | None) -> list[StoreKey]:
        """The keys of all sessions, or of those whose tenant has this name or digest."""
        tenants = [None] if tenant is None else self._named(tenant)
        return [key for each in tenants for key in await self._stored.store.keys(each)]

    async def find_session(self, name: str, tenant: str | None = None) -> Document | None:
        """The session with this key or id, of all tenants or one; raises `BadRequest` if several have it."""
        listed = await self.list_sessions(tenant, name)
        keys = [StoreKey(row["tenant"], row["session"]) for row in (*listed["data"], *listed["unreadable"])]
        if len(keys) > 1:
            places = ", ".join(f"{key.tenant}/{key.name}" for key in keys)
            raise BadRequest(
                f"{len(keys)} sessions have this id; name one as TENANT/SESSION, or its tenant with ?tenant=: {places}",
                param="tenant",
                code="ambiguous_session",
            )
        return await self.session(keys[0]) if keys else None

    async def session(self, key: StoreKey) -> Document | None:
        shown = await self.shown(key)
        return shown and shown.document

    async def version(self, key: StoreKey) -> str:
        """Changes whenever the stored session does; cheap to ask for. The same text for all that do not exist."""
        found = await self._stored.in_time(self._stored.store.load(key))
        return f"{blake2b(found.meta).hexdigest()} {sorted(found.marks)} {sorted(found.records)}" if found else ""

    async def shown(self, key: StoreKey) -> ShownSession | None:
        """One session with the messages of its branches, for people to look at; None if there is none."""
        patience = self._stored.patience()
        if not (line := await patience.read(self._line(key))):
            return None
        session = _with_inherited(line)
        blocks = await patience.read(self._stored.blocks(key, session))
        requests = unpacked_all(await patience.read(self._stored.store.journal(key)), session)
        return await read_in_thread(self._shown, key, session, blocks, requests)

    def _shown(
        self, key: StoreKey, session: Session, blocks: Mapping[str, bytes], requests: Sequence[RequestRecord]
    ) -> ShownSession:
        stored = StoredHistory.of(blocks, session.dialect)
        branches = {
            branch.name: list(messages_on(session, branch, stored, self._reader)) for branch in session.branches
        }
        counter = self._tokenizers.for_model("", stored.endpoint.counter)
        if counter.encoder is not None:
            counter.encoder.load()  # here, in a thread, rather than when a page counts
        pins = list(_pins(session, branches, counter))
        traits = dict.fromkeys(self._stored.records.decoders)  # None, unless the session has them
        document = {**traits, **session_document(key, session, stored, requests), "pins": pins}
        document["tenant_name"] = self.name_of(key.tenant)
        return ShownSession(document, session, requests, branches, counter)

    async def revert(self, key: StoreKey, condensation: str, *, undo: bool = False) -> Document | None:
        """Takes a condensation back, or with `undo` that; None if there is none. May be repeated."""
        line = await self._stored.in_time(self._line(key))
        held = ((at, each) for at, one in line for each in one.condensations if each.id == condensation)
        holder, found = next(held, (key, None))
        if found is None:
            return None
        if found.reverted is undo:
            mark = reverted(record_name(found.digest, found.depth), found.restored)
            await self._mark(holder, f"un{mark}" if undo else mark)
        return {"object": "restored" if undo else "reverted", "condensation": condensation}

    async def drop(self, key: StoreKey, line: str, *, now: bool = False) -> Document | None:
        """Leaves a line out of the ledger from the next condensation on, or `now`; None if no record has it."""
        known = await self._stored.in_time(self._line(key))
        if not known or line not in line_ids(session := _with_inherited(known)):
            return None
        own = known[0][1].condensations if line in line_ids(known[0][1]) else session.condensations
        await self._mark(key, drop_mark(line, own, now=now))
        return {"object": "dropped", "line": line, "now": now}

    async def _line(self, key: StoreKey) -> list[tuple[StoreKey, Session]]:
        """A session and those that it forked from, nearest first, with their keys; empty if there is none."""
        if (session := await self._stored.load(key)) is None:
            return []
        line = [session, *await SessionLookup(self._stored, key.tenant).ancestors(session)]
        names = [key.name, *(each.parent or "" for each in line)]
        return [(StoreKey(key.tenant, name), each) for name, each in zip(names, line, strict=False)]

    async def _mark(self, key: StoreKey, mark: str) -> None:
        await self._stored.in_time(self._stored.store.mark(key, mark))

    async def pin(self, key: StoreKey, written: object) -> Document | None:
        """Pins a message, named as `{"message": N, "branch": "main"}`; None if there is no such session or branch.

        May be repeated. Raises `BadRequest`, including for a message that does not fit beside those already pinned.
        """
        name = _branch_in(written)
        number = written.get("message") if isinstance(written, Mapping) else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadRequest("'message' must be the number of a message, from 0.", param="message")
        patience = self._stored.patience()
        session = await patience.read(self._stored.load(key))
        branch = _branch_named(name, session)
        if session is None or branch is None:
            return None
        blocks = await patience.read(self._stored.blocks(key, session))
        node = await read_in_thread(self._pinnable, session, branch, blocks, number)
        pin = pin_for(node.hex(), session.pins)
        await self._mark(key, pin.mark)
        return {"object": "pin", "id": pin.id, "message": number, "branch": name}

    def _pinnable(self, session: Session, branch: Branch, blocks: Mapping[str, bytes], number: int) -> bytes:
        """The digest after a message of a branch that may be pinned; raises `BadRequest` for another one."""
        stored = StoredHistory.of(blocks, session.dialect)
        messages = list(messages_on(session, branch, stored, self._reader))
        if number >= len(messages):
            raise BadRequest(f"Branch {branch.name} has no message {number}.", param="message")
        if messages[number].role is Role.SYSTEM:
            raise BadRequest("System messages are in every view anyway.", param="message")
        transcript = Transcript.of(messages)
        index = sum(message.role is not Role.SYSTEM for message in messages[:number])
        node = transcript.digests[index]
        counter = self._tokenizers.for_model("", stored.endpoint.counter)
        if _fitting(session, transcript, counter, node).get(index) is False:
            raise BadRequest(
                f"Message {number} does not fit with all that belongs to it beside what is pinned already: together it"
                " may have an eighth of the window.",
                param="message",
                code="pins_full",
            )
        return node

    async def unpin(self, key: StoreKey, pin: str) -> Document | None:
        """Takes a pin back; None if the session never had one with this id. May be repeated."""
        session = await self._stored.in_time(self._stored.load(key))
        found = [known for known in session.pins if known.id == pin] if session else []
        for known in found:
            if known.is_live:
                await self._mark(key, known.mark_of_end)
        return {"object": "unpinned", "pin": pin} if found else None

    async def delete(self, key: StoreKey) -> bool:
        """Deletes a session, even one that cannot be read. Returns whether there was one."""
        return await self._stored.in_time(self._stored.store.delete(key))

    async def delete_tenant(self, tenant: str) -> Document | None:
        """Deletes all that is kept of a tenant, named by its name or digest: its sessions, also those never saved.

        Returns how much there was; None if there was nothing. What cannot be read is deleted without being counted.
        """
        found: Tally[str] = Tally()
        for key in await self._keys(tenant):
            found.update(await self._contents(key), sessions=1)
            await self.delete(key)
        names = ("sessions", "memory_cards", "blocks", "bytes")
        return {"object": "deleted", **{name: found[name] for name in names}} if found else None

    async def _contents(self, key: StoreKey) -> Mapping[str, int]:
        """How many memory cards and blocks of text a session has, and its bytes, unsealed."""
        store, in_time = self._stored.store, self._stored.in_time
        try:
            entry, session = await in_time(store.load(key)), await in_time(self._stored.load(key))
            blocks, journal = await in_time(store.blocks(key)), await in_time(store.journal(key))
        except StoreError as error:
            if error.reason != "store-corrupt":
                raise
            return {}
        parts = [entry.meta, *entry.records.values()] if entry is not None else []
        size = sum(map(len, (*parts, *blocks.values(), *(item for _, item in journal))))
        return {"memory_cards": len(session.cards()) if session else 0, "blocks": len(blocks), "bytes": size}

    async def stats(self) -> Document:
        totals: Tally[str] = Tally()
        tenants: set[str] = set()
        async for key, session in self.each_session(await self._stored.store.keys()):
            if session is not None and session.source != SCOPE:
                tenants.add(key.tenant)
                totals.update(sessions=1, branches=len(session.branches), condensations=len(session.condensations))
                totals.update(session.totals)
        counted = ("sessions", "branches", "condensations", "requests", "client_tokens", "forwarded_tokens")
        own = ("own_tokens", "judge_tokens", "votes")
        names = (*counted, *own, "prompt_tokens", "cached_tokens", "completion_tokens")
        return {"object": "stats", "tenants": len(tenants), **{name: totals[name] for name in names}}

    async def each_session(self, keys: Iterable[StoreKey]) -> AsyncIterator[tuple[StoreKey, Session | None]]:
        """Every saved session, read one at a time so that requests can run in between; None for a broken one."""
        for key in keys:
            try:
                session = await self._stored.in_time(self._stored.load(key))
            except StoreError as error:
                if error.reason != "store-corrupt":
                    raise
                yield key, None
            else:
                if session is not None:
                    yield key, session


def _with_inherited(line: Sequence[tuple[StoreKey, Session]]) -> Session:
    """The first session with the records of its ancestors that its views apply; their cards stay with them."""
    session = line[0][1]
    wanted = {branch.applied for branch in session.branches} - {each.id for each in session.condensations}
    gone, dialect = dropped_from_ancestors(session), DIALECTS[session.dialect]
    found = [replace(each, cards=()) for _, one in line[1:] for each in one.condensations if each.id in wanted]
    inherited = {each.id: each.without(gone, dialect) for each in reversed(found)}
    return session._replace(condensations=(*inherited.values(), *session.condensations))


def _fitting(session: Session, transcript: Transcript, counter: Counter, *more: bytes) -> dict[int, bool]:
    """Whether each pinned message, and each at the nodes `more`, fits into the share for pins; by chain index.

    The window is that of the last request. If it was unknown, all of them count as fitting.
    """
    nodes = (*(pin.node for pin in session.pins if pin.is_live), *more)
    fitting = pinned_in(nodes, transcript, session.window, lambda each: counter.message(each.body))
    pinned = pinned_in(nodes, transcript, None)
    places = {digest: index for index, digest in enumerate(transcript.digests)}
    found = (places[node] for node in nodes if node in places)
    return {index: index in fitting or index not in pinned for index in found}


def _pins(session: Session, branches: Mapping[str, list[Message]], counter: Counter) -> Iterator[Document]:
    """Each pin, once for every branch that has its message; without a branch if none has it any more."""
    live = {pin.node: pin.id for pin in session.pins if pin.is_live}
    lost = set(live)
    for name, messages in branches.items() if live else ():
        transcript = Transcript.of(messages)
        numbers = [i for i, message in enumerate(messages) if message.role is not Role.SYSTEM]
        for index, fits in _fitting(session, transcript, counter).items():
            node = transcript.digests[index]
            lost.discard(node)
            yield {"id": live[node], "message": numbers[index], "branch": name, "fits": fits}
    yield from ({"id": live[node], "message": None, "branch": None, "fits": False} for node in sorted(lost))


def _summary(key: StoreKey, session: Session) -> Document:
    standing = [record for record in session.condensations if record.standing]
    latest = max(standing, key=lambda record: record.created_at, default=None)
    names = ("id", "strategy", "trigger", "tokens_before", "tokens_after", "own_tokens", "created_at")
    return {
        **_head(key, session),
        "last_used": max((branch.last_used for branch in session.branches), default=session.created_at),
        "strategy": session.strategy,
        "model": session.model,
        "latest": None if latest is None else {name: getattr(latest, name) for name in names},
        "branches": len(session.branches),
        "condensations": len(session.condensations),
        "totals": {**NONE, **session.totals},
    }


def _head(key: StoreKey, session: Session) -> Document:
    return {
        "tenant": key.tenant,
        "session": key.name,
        "id": session.id,
        "source": session.source,
        "title": session.title,
        "created_at": session.created_at,
    }


def _branch_in(written: object) -> str:
    """The name of the branch in a body; raises `BadRequest` for a body of any other form."""
    name = written.get("branch", MAIN) if isinstance(written, Mapping) else None
    if not isinstance(written, Mapping) or not isinstance(name, str) or written.keys() - {"message", "branch"}:
        raise BadRequest("The body is a JSON object with a 'message' and a 'branch'.")
    return name


def _branch_named(name: str, session: Session | None) -> Branch | None:
    branches = session.branches if session else ()
    return next((branch for branch in branches if branch.name == name), None)


def session_document(
    key: StoreKey, session: Session, stored: StoredHistory, requests: Sequence[RequestRecord] = ()
) -> Document:
    """Everything stored of a session except its pins; condensations are in order of time."""
    condensations = sorted(session.condensations, key=lambda record: (record.created_at, record.depth))
    latest = next((record for record in reversed(condensations) if not record.reverted), None)
    return {
        "object": "session",
        **_head(key, session),
        "parent": session.parent,
        "model": session.model,
        "settings": dict(session.settings),
        "totals": {**NONE, **session.totals},
        "branches": [_branch(branch, stored) for branch in session.branches],
        "context_strategy": session.strategy,
        "condensations": [_condensation(record, requests) for record in condensations],
        "latest_condensation": latest and latest.id,
        "condenser_meta_latest": latest and dict(latest.metadata),
        "judging": dict(session.judging),
        **{each: dict(v) if isinstance(v, Mapping) else v._asdict() for each, v in session.traits.items()},
        "ledger": ledger_of(session, next((made for made in reversed(condensations) if made.standing), None)),
        "memory": to_json(session.cards()),
        "verdicts": [encode_verdict(verdict) for verdict in session.verdicts],
        "requests": [request_document(each) for each in requests],
        "appended": [element.value for element in history_at(session.tip, stored.appended).elements],
    }


def request_document(record: RequestRecord) -> Document:
    """A request record as JSON, with what it means: whether it was rescued, and the tokens that it saved."""
    return {**record._asdict(), "rescued": record.is_rescued, "saved": record.saved, "cost": record.cost / MILLION}


def _branch(branch: Branch, stored: StoredHistory) -> Document:
    """A branch with all its messages."""
    return {
        "name": branch.name,
        "head": branch.head.hex(),
        "count": branch.length,
        "last_used": branch.last_used,
        "applied": branch.applied,
        "messages": [loads(message.raw) for message in stored.tree.line(branch.head)],
    }


def _condensation(condensation: Condensation, requests: Iterable[RequestRecord]) -> Document:
    """A condensation as it is stored, and what it has done for the requests that are recorded.

    A piece `[from, to]` is a run of kept messages, any other is the proxy's text.
    """
    used = [record for record in requests if record.condensation == condensation.id]
    document = {
        **condensation_document(condensation),
        "standing": condensation.standing,
        "reverted": condensation.reverted,
        "stands_for": condensation.stands_for,
        "fallback_reason": condensation.told("fallback_reason") or None,
        "requests": len(used),
        "rescued": sum(record.is_rescued for record in used),
        "saved_tokens": sum(record.saved for record in used),
    }
    del document["v"]
    return document


# -- memory ----------------------------------------------------------------------------------------------

TOP_K = 5
MAX_HITS = 100
EXPORTED = ("content", "type", "tags", "created_at", "source")


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
        branch = _branch_named(name, session)
        # A scope has no branches, and neither has a session with cards only; both can be searched.
        if session is None or (branch is None and name != MAIN):
            return None
        blocks = await patience.read(self.stored.blocks(key, session))
        hits = await read_in_thread(self._hits, session, branch, blocks, query)
        return {"object": "list", "data": [_hit(hit) for hit in hits[:top_k]]}

    def _hits(self, session: Session, branch: Branch | None, blocks: Mapping[str, bytes], query: str) -> list[Hit]:
        stored = StoredHistory.of(blocks, session.dialect)
        lines = [Transcript.of(line) for line in lines_on(session, branch, stored, self.reader)]
        transcript = Transcript(tuple([message for line in lines for message in line.chain]))
        if found := expanded(query, transcript, range(len(transcript.chain))):
            return found
        digests, nodes = transcript.digests, {node for line in lines for node in line.digests}
        standing = [record for record in session.condensations if record.digest in nodes]
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

    async def forget(self, key: StoreKey, card: str | None = None, *, now: bool = False) -> Document | None:
        """Deletes all cards, or one and those that say the same, `now` in views too; None also if it is not there."""
        gone = 0

        def changed(session: Session | None) -> Session | None:
            nonlocal gone
            seen = session.cards() if session else []
            ids = {each.id for each in seen if card in (None, each.id)}
            if session is None or (card is not None and not ids):
                return None
            left = without_cards(session, ids)
            left = without_blocks(left, [each.content for each in seen if each.id in ids]) if now else left
            gone = len(seen) - len(left.cards())
            return left

        session = await self._change(key, changed)
        return {"object": "forgotten", "cards": gone} if session else None

    async def _change(self, key: StoreKey, change: Callable[[Session | None], Session | None]) -> Session | None:
        changing = self.stored.change(key, change, self.ttl)
        return await self.stored.write(changing, self.stored.patience())


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
