"""Keeping a conversation: from a decided request back to the store.

A condensation is recorded before the view made from it is sent, and the first writer of one wins. The session itself
is settled when the upstream has taken the request: its branch moves on, its new messages become a block, its totals
rise. The document has a revision, so a writer that was late reads again and applies its turn to what it finds.

Every write goes on in a task of the app when nobody waits for it any more. The last byte of a reply waits for its
session to be settled as long as the request's patience lasts, and a quarter of the whole patience in any case: a store
that was slow until then, and is well again, is not given up on. Where it is not settled by then, that is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple
from weakref import WeakValueDictionary

from proxy.calibration.anchor import Anchor
from proxy.memory.scopes import with_shared
from proxy.reply.usage import Usage
from proxy.request import identity as names
from proxy.sessions.append import NO_LINE, Line
from proxy.sessions.blocks import new_block
from proxy.sessions.recognition import Recognised
from proxy.sessions.session import MAIN, NO_MEMORY_BLOCK, MemoryBlock, Session
from proxy.sessions.stored import TRIES, StoredSessions
from proxy.store.base import SessionKey, StoreError
from proxy.store.codec import encode_condensation, record_name
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation, Overlay, Piece, standing_in
from strategies.core.plan import head_pieces, with_task
from strategies.core.transcript import Transcript
from strategies.core.view import View

SMALL_SHARE = 4
SMALL_TOKENS = 2_048

_log = logging.getLogger(__name__)


class SessionUpdate(NamedTuple):
    """What one request adds to its session; an append builds on the line `before`.

    `usage` is what the upstream reported, `anchor` what calibration makes of it for the branch's next request, `reply`
    how the reply ends. The view's head has `covered` so many messages; `patch` are the hidden rounds that followed it,
    which have cost `memory_tokens`.
    """

    transcript: Transcript
    settings: dict[str, object]
    tokens_before: int
    tokens_after: int
    own_tokens: int
    applied: str
    line: Line | None = None
    before: Line = NO_LINE
    blocks: Mapping[str, bytes] = MappingProxyType({})
    block: MemoryBlock = NO_MEMORY_BLOCK
    usage: Usage | None = None
    anchor: Anchor | None = None
    reply: str = ""
    covered: int = 0
    patch: Overlay | None = None
    memory_tokens: int = 0


class Keeper:
    """Stores sessions and condensations; one per app. `ttl` is in seconds; `with_text` keeps clients' messages."""

    def __init__(self, stored: StoredSessions, *, ttl: int, clock: Callable[[], float], with_text: bool = True) -> None:
        self._stored = stored
        self._ttl = ttl
        self._clock = clock
        self._with_text = with_text
        # Writers of one process take turns; only those of other replicas are met by trying again.
        self._settling: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def cards(self, found: Sequence[MemoryCard], condensation: str, now: float) -> tuple[MemoryCard, ...]:
        """Memory cards as they are recorded with a condensation; none where no text may be kept."""
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
        made = (replace(card, condensation=condensation, created_at=card.created_at or at) for card in found)
        return tuple(made) if self._with_text else ()

    def pieces(self, view: View) -> tuple[Piece, ...]:
        """The pieces of a view's head as they are recorded.

        Where no texts are kept, the first user message is one of them: a client that trims it later still has its task.
        Elsewhere the stored history has it already.
        """
        pieces = head_pieces(view)
        return pieces if self._with_text else with_task(pieces, view.transcript)

    async def keep(self, found: Recognised, made: Condensation) -> Condensation:
        """Records a condensation; what the store holds of that name, ours or another writer's. Raises `StoreError`."""
        kept = await self._stored.write(self._keep(found.key, made), found.patience)
        await self._share(found, kept)
        return kept

    async def _keep(self, key: SessionKey, made: Condensation) -> Condensation:
        name = record_name(made.digest, made.depth)
        data = await self._stored.store.put_record(key, name, encode_condensation(made), self._ttl)
        await self._stored.store.stand(key, name)
        return self._stored.condensation(data, standing=True) or made

    async def prepare(self, found: Recognised, made: Condensation) -> Condensation:
        """Records a condensation that no view applies yet; what the store holds of that name. Raises `StoreError`."""
        name, data = record_name(made.digest, made.depth), encode_condensation(made)
        putting = self._stored.store.put_record(found.key, name, data, self._ttl)
        kept = self._stored.condensation(await self._stored.write(putting, found.patience), standing=False) or made
        await self._share(found, kept)
        return kept

    async def _share(self, found: Recognised, kept: Condensation) -> None:
        """Puts the cards of a condensation into the scope that its request names; a failure costs only that."""
        scope = found.scope
        if scope is None or not kept.cards:
            return
        now = self._clock()

        def shared(stored: Session | None) -> Session:
            return with_shared(stored, scope.name, kept.cards, now)

        try:
            await self._stored.write(self._stored.change(scope.key, shared, self._ttl), found.patience)
        except StoreError as error:
            _log.warning("cards were not shared: %s", error)

    async def stand(self, found: Recognised, made: Condensation) -> None:
        """Marks a condensation as applied by a view that is forwarded; raises `StoreError`."""
        standing = self._stored.store.stand(found.key, record_name(made.digest, made.depth))
        await self._stored.write(standing, found.patience)

    async def made_since(self, found: Recognised, digests: Sequence[bytes]) -> Condensation | None:
        """A condensation that stands in this chain and was recorded since the session was read; None without one."""
        return next(iter(standing_in(await self.recorded_since(found), digests)), None)

    async def recorded_since(self, found: Recognised) -> list[Condensation]:
        """All that was recorded since the session was read, prepared ones too; nothing where the store fails."""
        try:
            session = await found.patience.read(self._stored.load(found.key))
        except StoreError:
            return []
        seen = {(each.id, each.standing) for each in found.condensations}
        return [each for each in session.condensations if (each.id, each.standing) not in seen] if session else []

    async def amend(self, found: Recognised, change: Callable[[Session], Session], *, opens: bool = True) -> None:
        """Changes a session apart from its turns; a failure is logged, and a session that is gone stays so.

        It `opens` one that was not stored yet when its request came.
        """
        try:
            amending = self._in_turn(found.key, lambda: self._amend(found, change, opens=opens))
            await self._stored.write(amending, found.patience)
        except StoreError as error:
            _log.warning("a session was not amended: %s", error)

    async def _in_turn(self, key: SessionKey, work: Callable[[], Awaitable[None]]) -> None:
        async with self._settling.setdefault(key, asyncio.Lock()):
            await work()

    async def _amend(self, found: Recognised, change: Callable[[Session], Session], *, opens: bool) -> None:
        def changed(stored: Session | None) -> Session | None:
            session = stored or (self._new(found) if opens and not found.session else None)
            return change(session) if session else None

        await self._stored.change(found.key, changed, self._ttl)

    def named(self, found: Recognised, digests: Sequence[bytes]) -> tuple[str, str]:
        """The id of a request's session, and the branch that the request is on, by its chain digests."""
        session = found.session
        return (session.id, session.branch_for(digests)) if session else (_new_id(found), MAIN)

    def _new(self, found: Recognised) -> Session:
        return Session(
            id=_new_id(found),
            source=found.identity.source,
            created_at=self._clock(),
            parent=found.parent,
            inherited=found.inherited,
            forked=found.inherited,
        )

    async def settle(self, found: Recognised, turn: SessionUpdate) -> None:
        """Stores the session after this request, as its last step; a failure is logged, for the reply must not suffer.

        A caller that ends meanwhile changes nothing: it is stored all the same, and whole.
        """
        try:
            settling = self._in_turn(found.key, lambda: self._settle(found, turn))
            await self._stored.write(settling, found.patience, is_last=True)
        except StoreError as error:
            _log.warning("the session was not stored before the reply's last byte: %s", error)

    async def _settle(self, found: Recognised, turn: SessionUpdate) -> None:
        for _ in range(TRIES):
            if _is_overtaken(found.session, turn):
                raise StoreError("store-contended", "another append to this history was stored first")
            before = found.session or self._new(found)
            session = _advanced(before, turn, self._clock())
            index = _nodes(turn.transcript) if session.derived else ()
            if await self._saved(found.key, self._ways(before, session, turn), index):
                return
            found = _parted(found._replace(session=await self._stored.load(found.key)), turn)
        raise StoreError("store-contended", "other writers were always first")

    async def _saved(self, key: SessionKey, ways: Sequence[_Way], index: Sequence[str]) -> bool:
        """Whether the write won, in the first of some ways that is within the quotas."""
        *others, last = ways
        for session, blocks in others:
            try:
                return await self._stored.save(key, session, self._ttl, blocks, index)
            except StoreError as error:
                if error.reason != "store-quota":
                    raise
        return await self._stored.save(key, last.session, self._ttl, last.blocks, index)

    def _ways(self, before: Session, session: Session, turn: SessionUpdate) -> list[_Way]:
        """How a session may be stored: over its quota it goes on without text, but in append mode.

        A fork that goes on stores what it shares with its parent. Where that is too much, it inherits it as before.
        """
        if turn.line is not None:
            return [_Way(session, turn.blocks)]
        *shared, own = [
            new_block(turn.transcript, run.start, run.stop, with_text=self._with_text)
            for run in before.new_in(turn.transcript.digests)
        ]
        inheriting = session._replace(inherited=before.inherited)
        whole = {name: data for block in (*shared, own) for name, data in block.items()}
        return [_Way(session, whole), *([_Way(inheriting, own)] if any(shared) else ()), _Way(inheriting, {})]


class _Way(NamedTuple):
    """A session to be stored, with the blocks that it has more."""

    session: Session
    blocks: Mapping[str, bytes]


def _new_id(found: Recognised) -> str:
    """The id of a session that is not stored yet."""
    return names.shown(found.identity.id) if found.identity.id else found.key.session


def is_small(tokens: int, window: int | None) -> bool:
    """Whether a derived conversation is too small to be stored."""
    return tokens < (window // SMALL_SHARE if window is not None else SMALL_TOKENS)


def _is_overtaken(session: Session | None, turn: SessionUpdate) -> bool:
    """Whether another append was stored since this one was supplied; the very same one is replaced."""
    if turn.line is None:
        return False
    line = session.line if session else NO_LINE
    return line != turn.before and line.head != turn.line.head


def _parted(found: Recognised, turn: SessionUpdate) -> Recognised:
    """A derived session that another request has taken elsewhere meanwhile is not this one's any more: it forks.

    One without branches was only amended, by a vote or a late summary of this very request.
    """
    session = found.session
    if (
        session is None
        or not session.derived
        or not session.branches
        or session.branch_of(turn.transcript.digests) is not None
    ):
        return found
    key = SessionKey(found.key.tenant, names.random_session())
    return found._replace(key=key, session=None, parent=session.id, inherited=0)


def _advanced(session: Session, turn: SessionUpdate, now: float) -> Session:
    """The session as it stands after a turn."""
    digests = turn.transcript.digests
    patched = session.patched(turn.patch, digests, turn.covered)
    moved, _branch = patched.advanced(digests, now, turn.applied, turn.block, turn.anchor, turn.reply)
    settings = session.settings if session.derived else turn.settings
    saved = session.saved_with(turn.applied, turn.tokens_before - turn.tokens_after)
    totals = session.raised(
        requests=1,
        client_tokens=turn.tokens_before,
        forwarded_tokens=turn.tokens_after,
        own_tokens=turn.own_tokens,
        **({"memory_tokens": turn.memory_tokens} if turn.memory_tokens else {}),
        **_reported(turn.usage),
    )
    return moved._replace(settings=settings, line=turn.line or session.line, totals=totals, saved=saved)


def _reported(usage: Usage | None) -> dict[str, int]:
    """The totals that a usage raises; tokens as the upstream counts them."""
    if usage is None:
        return {}
    return {"prompt_tokens": usage.prompt, "cached_tokens": usage.cached, "completion_tokens": usage.completion}


def _nodes(transcript: Transcript) -> tuple[str, ...]:
    """The chain digests that lead to a session: its head, and the node before it."""
    return tuple(digest.hex() for digest in transcript.digests[-2:])
