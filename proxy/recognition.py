"""Recognising a conversation: from a request to its session, and back to the store.

An explicit id names its session. Without one the chain index is asked for the longest known prefix of the transcript;
the session that it leads to is verified, for the index is only a hint. A derived session never holds two conversations:
what forks from it gets a new id and a link to its parent, whose condensations it may read.

All store work of a request runs under one time limit. Whatever fails is told in `failure`, and the request goes on
as if nothing were known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

from proxy import identity as names
from proxy.append import History, Line, history
from proxy.blocks import line_to, new_block, nodes
from proxy.headers import Headers
from proxy.identity import Identity
from proxy.sessions import Session
from proxy.store.base import SessionKey, SessionStore, StoreError, Write
from proxy.store.codec import decode_condensation, decode_session, encode_condensation, encode_session, record_name
from strategies.core.alignment import LEAST_RUN, align
from strategies.core.condensation import Condensation
from strategies.core.transcript import Role, Transcript

T = TypeVar("T")
SMALL_SHARE = 4
SMALL_TOKENS = 2_048
_TRIES = 8
_CANDIDATES = 4
_ANCESTORS = 8

_log = logging.getLogger(__name__)


class Restored(NamedTuple):
    """The messages that a client has dropped, as they are stored, and whether it kept the first one."""

    messages: tuple[str, ...]
    kept_first: bool


@dataclass(frozen=True, slots=True)
class Recognised:
    """The session of a request. `session` is None where it is new; `key` is where it is or would be stored."""

    identity: Identity
    key: SessionKey
    shown: str
    session: Session | None = None
    condensations: tuple[Condensation, ...] = ()
    parent: str | None = None
    failure: str = ""
    restored: Restored | None = None

    def last_applied(self, transcript: Transcript) -> str | None:
        """What the last view of this transcript's branch applied; None where the branch is not known.

        A derived conversation that is new to us has sent its own messages until now: what others that begin like it
        have applied is used only where it must be condensed anyway.
        """
        if self.session is None:
            return "" if self.is_derived else None
        branch = self.session.branch_of(transcript.digests)
        return branch.applied if branch else None

    @property
    def is_derived(self) -> bool:
        """Whether it was recognised by its chain."""
        return self.identity.id is None


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


class Sessions:
    """Finds, keeps and advances sessions in a store."""

    def __init__(
        self,
        store: SessionStore,
        *,
        headers: Sequence[str],
        ttl: int,
        timeout: float,
        clock: Callable[[], float],
        with_text: bool = True,
        new_session: Callable[[], str] = names.random_session,
    ) -> None:
        self._store = store
        self._headers = headers
        self._ttl = ttl
        self._timeout = timeout
        self._clock = clock
        self._with_text = with_text
        self._new_session = new_session
        # Writers of one process take turns; only those of other replicas are met by trying again.
        self._settling: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()

    def identify(self, given: str | None, headers: Headers, body: dict[str, object]) -> Identity:
        """Which session a request names; raises `BadRequest`."""
        return names.identify(given, headers, body, self._headers)

    async def recognise(self, tenant: str, identity: Identity, transcript: Transcript) -> Recognised:
        """The session of a transcript; a store that fails is told in the result."""
        blank = self._blank(tenant, identity, transcript)
        try:
            return await self._in_time(self._recognise(tenant, blank, transcript))
        except StoreError as error:
            _log.warning("the store failed: %s", error)
            return replace(blank, failure=error.reason)

    def _blank(self, tenant: str, identity: Identity, transcript: Transcript) -> Recognised:
        if identity.id is not None:
            key = SessionKey(tenant, names.session_key(identity.id))
            return Recognised(identity, key, names.shown(identity.id))
        task = transcript.task
        opening = transcript.chain[task].digest if task is not None else b""
        return Recognised(identity, SessionKey(tenant, self._new_session()), names.provisional(tenant, opening))

    async def _recognise(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        if blank.identity.id is None:
            return await self._derive(tenant, blank, transcript)
        session = await self._load(blank.key)
        if session is None:
            return blank
        if blank.identity.weak and session.branch_of(transcript.digests) is None:
            derived = self._blank(tenant, Identity(), transcript)
            return await self._derive(tenant, derived, transcript)
        found = replace(blank, session=session, condensations=session.condensations)
        if session.branches and session.branch_of(transcript.digests) is None:
            return replace(found, restored=await self._align(found, session, transcript))
        return found

    async def _align(self, found: Recognised, session: Session, transcript: Transcript) -> Restored | None:
        """What a client that sends a window of its history has left out, or None where that is not what it did."""
        if len(transcript.chain) < LEAST_RUN:
            return None
        stored = nodes(await self._store.blocks(found.key))
        sent = [message.digest for message in transcript.chain]
        assistants = [message.role is Role.ASSISTANT for message in transcript.chain]
        for branch in sorted(session.branches, key=lambda each: each.last_used, reverse=True):
            line = line_to(branch.head, stored)
            alignment = align([each.digest for each in line], sent, assistants)
            if alignment is not None:
                missing = [line[i].raw for i in alignment.missing()]
                texts = tuple(raw for raw in missing if raw is not None)
                return Restored(texts, alignment.kept_first) if len(texts) == len(missing) else None
        return None

    async def _derive(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        """The derived session that this transcript continues, or a fork of the one it shares most with."""
        digests = [digest.hex() for digest in reversed(transcript.digests)]
        found = await self._store.find(tenant, digests)
        for name in list(dict.fromkeys(found[each] for each in digests if each in found))[:_CANDIDATES]:
            session = await self._load(SessionKey(tenant, name))
            if session is None or not session.derived:
                continue
            known = session.condensations + await self._inherited(tenant, session)
            if session.branch_of(transcript.digests) is None:
                return replace(blank, condensations=known, parent=name)
            key = SessionKey(tenant, name)
            return replace(blank, key=key, shown=name, session=session, condensations=known)
        return blank

    async def _inherited(self, tenant: str, session: Session) -> tuple[Condensation, ...]:
        known: list[Condensation] = []
        parent = session.parent
        for _ in range(_ANCESTORS):
            ancestor = await self._load(SessionKey(tenant, parent)) if parent else None
            if ancestor is None:
                break
            known.extend(ancestor.condensations)
            parent = ancestor.parent
        return tuple(known)

    async def _load(self, key: SessionKey) -> Session | None:
        snapshot = await self._store.load(key)
        try:
            return decode_session(snapshot) if snapshot else None
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a session cannot be read: {type(error).__name__}") from error

    async def history(self, tenant: str, identity: Identity) -> History:
        """What append mode has stored under an explicit id; raises `StoreError`."""
        return await self._in_time(self._history(SessionKey(tenant, names.session_key(identity.id or ""))))

    async def _history(self, key: SessionKey) -> History:
        session = await self._load(key)
        if session is None or not session.line.block:
            return History()
        try:
            return history(session.line, await self._store.blocks(key))
        except KeyError as missing:
            raise StoreError("store-corrupt", f"block {missing} of an appended history is gone") from None

    async def keep(self, found: Recognised, made: Condensation) -> Condensation:
        """Records a condensation; what the store holds of that name, ours or another writer's. Raises `StoreError`."""
        return await self._in_time(self._keep(found.key, made))

    async def _keep(self, key: SessionKey, made: Condensation) -> Condensation:
        name = record_name(made.digest, made.depth)
        data = await self._store.put_record(key, name, encode_condensation(made), self._ttl)
        await self._store.stand(key, name)
        return decode_condensation(data, standing=True) or made

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
                await self._in_time(self._settle(found, turn))
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
            found = replace(found, session=await self._load(found.key))
        raise StoreError("store-contended", "other writers were always first")

    async def _saved(self, key: SessionKey, write: Write, turn: Turn) -> bool:
        """Whether the write won; over its quota a session goes on without the text of its new messages."""
        try:
            return await self._store.save(key, write)
        except StoreError as error:
            if error.reason != "store-quota" or turn.line is not None:
                raise
            return await self._store.save(key, replace(write, blocks={}))

    def _new_messages(self, found: Recognised, turn: Turn) -> dict[str, bytes]:
        """The block of what this request adds; append mode has its own."""
        if turn.line is not None:
            return {}
        start = found.session.new_from(turn.transcript.digests) if found.session else 0
        return new_block(turn.transcript, start, with_text=self._with_text)

    async def _in_time(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            raise StoreError("store-timeout", f"not done in {self._timeout} s") from None


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
