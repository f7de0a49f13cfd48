"""Writes a conversation back to the store after a request was decided.

A condensation is recorded before the view made from it is sent; the first writer of a record wins. If the upstream has
not accepted the caller yet, recording is deferred until a good reply begins (`proxy/callers/tenants.py`). The session
itself is settled when the upstream has accepted the request: its branch moves on, its new messages become a block, and
its totals rise. The session's document has a revision. A writer that comes too late reads the document again and
applies its turn to that.

Every write runs in a task of the app, even if nobody waits for it any more. The last byte of a reply waits until its
session is settled: as long as the request's patience lasts, and at least a quarter of the whole patience, so that a
store that was slow and has recovered is still waited for. If the session is not settled by then, the log says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import count
from typing import NamedTuple

from proxy.callers.tenants import UNPROVEN
from proxy.conversations.cards import scope_key, with_shared
from proxy.conversations.codec import encode_condensation, new_block, record_name, reverted
from proxy.conversations.recognition import Recognised, new_derived_id
from proxy.conversations.requests import RequestRecord, amounts
from proxy.conversations.session import DERIVED, Branch, Session, Tip, openings, title_of, unstored_in
from proxy.conversations.stored import NONE, TRIES, StoredSessions
from proxy.runtime.owned_tasks import load_of, offload
from proxy.store.access import compress
from proxy.store.base import StoreError, StoreKey
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation
from strategies.core.transcript import Transcript

SMALL_SHARE = 4
SMALL_TOKENS = 2_048


class SessionUpdate(NamedTuple):
    """What a request leaves in the store."""

    transcript: Transcript  # the history that the client sent, or in append mode all of it
    after: Callable[[Session, Branch | None, float], tuple[Session, bytes]]
    """The session after the request and the request's item of the journal, by the session, the branch that it continues
    (None if it opens one), and the time.

    A function, because the session may be read again before it is written.
    """
    covered: int = 0  # how many messages the view's head covers
    blocks: Mapping[str, bytes] = NONE  # the block of an append, by its name
    tip: Tip | None = None  # where the history ends after an append; None outside of append mode
    tip_before: Tip = Tip()
    marks: tuple[str, ...] = ()  # those of the answer to a compaction, by which a later request is known


@dataclass(slots=True)
class Keeper:
    _stored: StoredSessions
    _: KW_ONLY
    ttl: int  # seconds that a session lives after a write
    clock: Callable[[], float]

    async def record(self, recognised: Recognised, condensation: Condensation, *, standing: bool) -> Condensation:
        """Records a condensation; returns the one that is stored, ours or another writer's. Raises `StoreError`.

        `standing` says that a view applies it; otherwise it is only prepared.
        """
        condensation = _beside_reverted(condensation, recognised.condensations)
        if recognised.trust.defers(self._logged(lambda: self.record(recognised, condensation, standing=standing))):
            return replace(condensation, standing=standing)
        putting = self._put(recognised.key, condensation, standing=standing)
        kept = await self._stored.write(putting, recognised.patience)
        await self._share(recognised, kept.cards)
        return kept

    async def _put(self, key: StoreKey, condensation: Condensation, *, standing: bool) -> Condensation:
        name = record_name(condensation.digest, condensation.depth)
        data = await self._stored.store.put_record(key, name, compress(encode_condensation(condensation)), self.ttl)
        try:
            kept = self._stored.records.condensation(data, standing=standing)
        except StoreError:
            kept = None
        if kept is None:
            # A record that is damaged or of another version keeps its name, so this one goes a step deeper.
            return await self._put(key, replace(condensation, depth=condensation.depth + 1), standing=standing)
        if standing:
            await self._stored.store.mark(key, name)
        return kept

    async def _share(self, recognised: Recognised, cards: Sequence[MemoryCard]) -> None:
        """Puts the cards of a condensation into the scope that its request names; a failure is only logged."""
        scope = recognised.card_scope
        if scope is None or not cards:
            return
        key = scope_key(recognised.key.tenant, scope.id)
        shared = partial(with_shared, scope=scope, cards=cards, now=self.clock())
        try:
            await self._stored.write(self._stored.change(key, shared, self.ttl), recognised.patience)
        except StoreError as error:
            self._stored.outage.failed("cards were not shared", error)

    async def mark_standing(self, recognised: Recognised, condensation: Condensation) -> None:
        """Marks a condensation as applied by a forwarded view; raises `StoreError`.

        A fork that applies a condensation of its ancestors records it as its own, because each session has its marks.
        """
        own = recognised.session.condensations if recognised.session else ()
        if any(known.id == condensation.id for known in own):
            await self.mark(recognised, record_name(condensation.digest, condensation.depth))
        elif not recognised.trust.defers(self._logged(lambda: self.mark_standing(recognised, condensation))):
            await self._stored.write(self._put(recognised.key, condensation, standing=True), recognised.patience)

    async def mark(self, recognised: Recognised, name: str) -> None:
        if not recognised.trust.defers(self._logged(lambda: self.mark(recognised, name))):
            await self._stored.write(self._stored.store.mark(recognised.key, name), recognised.patience)

    async def take_back(self, recognised: Recognised, condensation: Condensation) -> None:
        """Marks a condensation as reverted, because its upstream cannot read it; a failure is only logged."""
        name = reverted(record_name(condensation.digest, condensation.depth), condensation.restored)
        await self._logged(lambda: self.mark(recognised, name))()

    async def recorded_since(self, recognised: Recognised) -> list[Condensation]:
        """The condensations recorded since the session was read, including prepared ones; none if the store fails."""
        try:
            session = await recognised.patience.read(self._stored.load(recognised.key))
        except StoreError:
            return []
        seen = {(known.id, known.standing) for known in recognised.condensations}
        known = (each for each in session.condensations if each.is_readable_by(recognised.reader)) if session else ()
        return [each for each in known if (each.id, each.standing) not in seen]

    async def amend(
        self,
        recognised: Recognised,
        change: Callable[[Session], Session],
        *,
        creates: bool = True,
        index: Sequence[str] = (),
    ) -> None:
        """Changes a session outside of a turn; a failure is logged, and a session that was deleted stays deleted.

        With `creates`, a session that was not stored when its request arrived is created. A derived session is found by
        the digests in `index` too.
        """
        if recognised.trust.defers(lambda: self.amend(recognised, change, creates=creates, index=index)):
            return

        def changed(stored: Session | None) -> Session | None:
            session = stored or (self._new(recognised) if creates and not recognised.session else None)
            return change(session) if session else None

        try:
            indexed = index if recognised.identity.id is None else ()
            amending = self._stored.change(recognised.key, changed, self.ttl, indexed)
            await self._stored.write(amending, recognised.patience)
        except StoreError as error:
            self._stored.outage.failed("a session was not amended", error)

    def _logged(self, write: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """The same write with its failure logged, because nobody waits for it when it is made later."""

        async def logged() -> None:
            try:
                await write()
            except StoreError as error:
                self._stored.outage.failed("what waited for the upstream was not stored", error)

        return logged

    def _new(self, recognised: Recognised) -> Session:
        is_unproven = recognised.trust.elsewhere and not (recognised.parent or recognised.condensations)
        return Session(
            id=recognised.stored_id,
            source=recognised.identity.source,
            created_at=self.clock(),
            parent=recognised.parent,
            inherited=recognised.inherited,
            forked_after=recognised.inherited,
            dialect=recognised.identity.dialect,
            traits={UNPROVEN: True} if is_unproven else {},
        )

    async def note_failed(self, recognised: Recognised, record: RequestRecord) -> None:
        """Counts and records a request that was not answered, if its session is stored; a failure is only logged."""

        def changed(session: Session | None) -> Session | None:
            if session is None:
                return None
            known = session.with_model(record.model)._replace(model=session.model)
            return known.with_totals(**amounts(record, None))

        if recognised.session is None:
            return
        try:
            changing = self._stored.change(
                recognised.key, changed, self.ttl, journal=lambda session: record.packed(session.models)
            )
            await self._stored.write(changing, self._stored.patience())
        except StoreError as error:
            self._stored.outage.failed("a request that failed was not recorded", error)

    async def settle(self, recognised: Recognised, update: SessionUpdate) -> str:
        """Stores the session after this request. Returns why it was not stored in time, "" if it was.

        A failure is logged. Even if the caller is cancelled meanwhile, the session is stored completely.
        """
        try:
            await self._stored.write(self._settle(recognised, update), recognised.patience, is_last=True)
        except StoreError as error:
            self._stored.outage.failed("the session was not stored before the reply's last byte", error)
            return error.reason
        return ""

    async def _settle(self, recognised: Recognised, update: SessionUpdate) -> None:
        async with self._stored.lock(recognised.key):
            for _ in range(TRIES):
                stored_tip = recognised.session.tip if recognised.session else Tip()
                # A repetition of this very append does not count.
                if update.tip is not None and stored_tip != update.tip_before and stored_tip.head != update.tip.head:
                    raise StoreError("store-contended", "another append to this history was stored first")
                if await self._save(recognised, update):
                    for pin in recognised.pins if recognised.session is None else ():
                        await self._stored.store.mark(recognised.key, pin.mark)
                        if not pin.is_live:
                            await self._stored.store.mark(recognised.key, pin.mark_of_end)
                    for mark in recognised.drops if recognised.session is None else ():
                        await self._stored.store.mark(recognised.key, mark)
                    return
                stored = await self._stored.load(recognised.key)
                recognised = _forked_if_moved(recognised._replace(session=stored), update)
        raise StoreError("store-contended", "other writers were always first")

    async def _save(self, recognised: Recognised, update: SessionUpdate) -> bool:
        """Writes the session after a turn with its new blocks; False if another writer was first.

        A session over its quota is stored without blocks, except in append mode. A fork that continues also stores the
        blocks that it shares with its parent; if these exceed the quota, it keeps inheriting them.
        """
        before, branch = recognised.session, recognised.branch
        before = before or self._new(recognised)._replace(title=title_of(update.transcript.chain))
        session, item = update.after(before, branch, self.clock())
        if update.tip is not None:
            session = session._replace(tip=update.tip)
        save = partial(self._stored.save, recognised.key, journal=item)
        index = (*nodes_of(update), *update.marks) if session.source == DERIVED else ()
        if update.tip is not None:
            return await save(session, self.ttl, update.blocks, index)
        transcript = update.transcript
        shared, own = [
            await offload(load_of(transcript.chain[run.start : run.stop]), new_block, transcript, run.start, run.stop)
            if run
            else {}
            for run in unstored_in(before, transcript, branch)
        ]
        inheriting = session._replace(inherited=before.inherited) if before.inherited else session
        for form, blocks in ((session, shared | own), (inheriting, own))[: 2 if shared else 1]:
            try:
                return await save(form, self.ttl, blocks, index)
            except StoreError as error:
                if error.reason != "store-quota":
                    raise
        return await save(inheriting, self.ttl, NONE, index)


def nodes_of(update: SessionUpdate) -> tuple[str, ...]:
    """The digests that index a derived session: its last two, those of its openings, and the end of its view's head."""
    digests = update.transcript.digests
    condensed = digests[update.covered - 1 : update.covered]
    nodes = (*(opening.node for opening in openings(update.transcript)), *condensed, *digests[-2:])
    return tuple(dict.fromkeys(node.hex() for node in nodes))


def _beside_reverted(condensation: Condensation, known: Iterable[Condensation]) -> Condensation:
    """A new condensation, at a depth that no reverted one has taken."""
    taken = {record.depth for record in known if record.reverted and record.digest == condensation.digest}
    depth = next(depth for depth in count(condensation.depth) if depth not in taken)
    return condensation if depth == condensation.depth else replace(condensation, depth=depth)


def is_small(tokens: int, window: int | None) -> bool:
    """Whether a derived conversation is too small to be stored."""
    return tokens < (window // SMALL_SHARE if window is not None else SMALL_TOKENS)


def _forked_if_moved(recognised: Recognised, update: SessionUpdate) -> Recognised:
    """`recognised` with the branch that it continues in a session that was read again.

    It gets a new key if another request has meanwhile moved its derived session to another history. A session without
    branches was only amended, by a vote or a late summary of this very request.
    """
    recognised = recognised.continued_by(update.transcript)
    session = recognised.session
    if session is None or session.source != DERIVED or not session.branches or recognised.branch is not None:
        return recognised
    key = StoreKey(recognised.key.tenant, new_derived_id())
    return recognised._replace(key=key, session=None, parent=session.id, inherited=0)
