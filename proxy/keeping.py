"""Keeping a conversation: from a decided request back to the store.

A condensation is recorded before the view made from it is sent, and the first writer of one wins. The session itself
is settled when the upstream has taken the request: its branch moves on, its new messages become a block, its totals
rise. The document has a revision, so a writer that was late reads again and applies its turn to what it finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from proxy import identity as names
from proxy.append import Line
from proxy.blocks import new_block
from proxy.recognition import Recognised
from proxy.sessions import Session
from proxy.store.base import SessionKey, StoreError, Write
from proxy.store.codec import decode_condensation, encode_condensation, encode_session, record_name
from proxy.stored import StoredSessions
from strategies.core.condensation import Condensation, standing_in
from strategies.core.transcript import Transcript

SMALL_SHARE = 4
SMALL_TOKENS = 2_048
_TRIES = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request adds to its session."""

    transcript: Transcript
    settings: dict[str, object]
    tokens_before: int
    tokens_after: int
    own_tokens: int
    applied: str
    line: Line | None = None
    blocks: Mapping[str, bytes] = field(default_factory=dict)


class Keeper:
    """Stores sessions and condensations; one per app. `ttl` is in seconds; `with_text` keeps clients' messages."""

    def __init__(self, stored: StoredSessions, *, ttl: int, clock: Callable[[], float], with_text: bool = True) -> None:
        self._stored = stored
        self._ttl = ttl
        self._clock = clock
        self._with_text = with_text
        # Writers of one process take turns; only those of other replicas are met by trying again.
        self._settling: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    async def keep(self, found: Recognised, made: Condensation) -> Condensation:
        """Records a condensation; what the store holds of that name, ours or another writer's. Raises `StoreError`."""
        return await self._stored.in_time(self._keep(found.key, made))

    async def _keep(self, key: SessionKey, made: Condensation) -> Condensation:
        name = record_name(made.digest, made.depth)
        data = await self._stored.store.put_record(key, name, encode_condensation(made), self._ttl)
        await self._stored.store.stand(key, name)
        return decode_condensation(data, standing=True) or made

    async def made_since(self, found: Recognised, digests: Sequence[bytes]) -> Condensation | None:
        """A condensation that stands in this chain and was recorded since the session was read; None without one."""
        try:
            session = await self._stored.in_time(self._stored.load(found.key))
        except StoreError:
            return None
        seen = {each.id for each in found.condensations}
        fresh = [each for each in session.condensations if each.id not in seen] if session else []
        return next(iter(standing_in(fresh, digests)), None)

    def next(self, found: Recognised, turn: Turn) -> tuple[Session, str]:
        """The session as it stands after this request, and the branch that the request is on."""
        base = found.session or Session(
            id=names.shown(found.identity.id) if found.identity.id else found.key.session,
            source=found.identity.source,
            created_at=self._clock(),
            parent=found.parent,
        )
        return _advanced(base, turn, self._clock())

    async def settle(self, found: Recognised, turn: Turn) -> None:
        """Stores the session after this request; a failure is logged, for the reply must not suffer."""
        lock = self._settling.setdefault(found.key, asyncio.Lock())
        try:
            async with lock:
                await self._stored.in_time(self._settle(found, turn))
        except StoreError as error:
            _log.warning("the session was not stored: %s", error)

    async def _settle(self, found: Recognised, turn: Turn) -> None:
        for _ in range(_TRIES):
            session, _branch = self.next(found, turn)
            revision = found.session.revision if found.session else 0
            index = _nodes(turn.transcript) if session.derived else ()
            blocks = {**turn.blocks, **self._new_messages(found, turn)}
            write = Write(encode_session(session), revision, self._ttl, blocks, index)
            if await self._saved(found.key, write, turn):
                return
            found = replace(found, session=await self._stored.load(found.key))
        raise StoreError("store-contended", "other writers were always first")

    async def _saved(self, key: SessionKey, write: Write, turn: Turn) -> bool:
        """Whether the write won; over its quota a session goes on without the text of its new messages."""
        try:
            return await self._stored.store.save(key, write)
        except StoreError as error:
            if error.reason != "store-quota" or turn.line is not None:
                raise
            return await self._stored.store.save(key, replace(write, blocks={}))

    def _new_messages(self, found: Recognised, turn: Turn) -> dict[str, bytes]:
        """The block of what this request adds; append mode has its own."""
        if turn.line is not None:
            return {}
        start = found.session.new_from(turn.transcript.digests) if found.session else 0
        return new_block(turn.transcript, start, with_text=self._with_text)


def is_small(tokens: int, window: int | None) -> bool:
    """Whether a derived conversation is too small to be stored."""
    return tokens < (window // SMALL_SHARE if window is not None else SMALL_TOKENS)


def _advanced(session: Session, turn: Turn, now: float) -> tuple[Session, str]:
    moved, branch = session.advanced(turn.transcript.digests, now, turn.applied)
    settings = session.settings if session.derived else turn.settings
    counted = replace(moved, settings=settings, line=turn.line or session.line).counted(
        requests=1, client_tokens=turn.tokens_before, forwarded_tokens=turn.tokens_after, own_tokens=turn.own_tokens
    )
    return counted, branch.name


def _nodes(transcript: Transcript) -> tuple[str, ...]:
    """The chain digests that lead to a session: its head, and the node before it."""
    return tuple(digest.hex() for digest in transcript.digests[-2:])
