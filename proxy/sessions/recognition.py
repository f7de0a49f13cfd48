"""Finds the session of a request: by an explicit id, or by the chain of its messages.

Without an id the chain index is asked for the longest known prefix of the transcript. The index is only a hint, so a
session that it names is read and verified before it is continued. A derived session never holds two conversations: a
transcript that forks from it gets a new id and a link to its parent, whose condensations it may read.

A failure of the store is reported in `Recognised.failure`, and the request goes on as if nothing were stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.http.headers import Headers, lowered_names
from proxy.request.callers import ALWAYS, Trust
from proxy.request.wire import Body
from proxy.runtime.lru import Lru
from proxy.sessions import identity as names
from proxy.sessions.append import History, history_at
from proxy.sessions.cards import Scope, cards_of_scope, scope_key
from proxy.sessions.histories import Histories, MissingMessages
from proxy.sessions.identity import Identity
from proxy.sessions.session import Branch, Session, Wish, has_node, is_answered_alike
from proxy.sessions.stored import StoredSessions
from proxy.sessions.turn import newest_turn, openings
from proxy.store.access import Patience
from proxy.store.base import StoreError, StoreKey
from strategies.core.alignment import MIN_RUN, align
from strategies.core.condensation import Condensation
from strategies.core.messages import Role
from strategies.core.pieces import Overlay
from strategies.core.transcript import Transcript

_CANDIDATES = 4
_NEWEST = 16
"""Nodes that are looked up first: a conversation that goes on is found by one of its last."""
_MANY = 1_000
"""Nodes that take long enough to compute that other requests get their turn afterwards."""
_REMEMBERED = 1_000
"""Ends of conversations for which the sessions that their next turn will have to read are remembered."""


class Recognised(NamedTuple):
    """The session of a request, as far as the store has it."""

    identity: Identity
    """How the request names its session."""
    key: StoreKey
    """Where the session is stored, or would be."""
    shown_id: str
    """The session's id as headers show it."""
    patience: Patience
    """How long the request may still wait for the store."""
    session: Session | None = None
    """None where the session is new, or could not be read."""
    branch: Branch | None = None
    """The branch that the transcript continues; None where it opens a new one."""
    condensations: tuple[Condensation, ...] = ()
    """The condensations of the session and of its ancestors."""
    patches: tuple[Overlay, ...] = ()
    """Hidden rounds of the session and of its ancestors, the newest last."""
    pins: tuple[Wish, ...] = ()
    """The pins of the session, or of the one that a new one forks from and takes them over."""
    parent: str | None = None
    """The stored name of the session that a new one forks from."""
    inherited: int = 0
    """How many first messages a new fork shares with its parent."""
    failure: str = ""
    """The reason of a `StoreError`; "" where the store has answered."""
    newest_turn: int = 0
    """How many of the last messages are the newest turn; 0 where it is not known what the last request had."""
    missing: MissingMessages | None = None
    """The messages that a client left out which sends a window of its history."""
    scope: Scope | None = None
    """The scope in which the session shares memory cards."""
    trust: Trust = ALWAYS
    """Whether anything may be stored yet."""

    def last_applied(self, branch: Branch | None) -> str | None:
        """The id of the condensation in the last view of the request's branch; None where that is not known.

        It is "" for a new derived conversation: its requests were sent uncondensed until now, and the condensations of
        others that begin alike are used only where it must be condensed anyway.
        """
        if self.session is None:
            return "" if self.is_derived else None
        return branch.applied if branch else None

    def with_fresh_patience(self) -> Recognised:
        """The same with a full patience, for work that the request does not wait for."""
        return self._replace(patience=self.patience.fresh())

    @property
    def is_derived(self) -> bool:
        """Whether the session is found by the chain rather than by an id."""
        return self.identity.id is None


class Recogniser:
    """Finds sessions; one per app. `headers` are the names of headers that may hold an id, in order."""

    def __init__(
        self,
        stored: StoredSessions,
        headers: Sequence[str],
        new_session: Callable[[], str] = names.new_derived_id,
    ) -> None:
        self._stored = stored
        self._histories = Histories(stored)
        self._headers = lowered_names(headers)
        self._new_session = new_session
        self._recent_paths: Lru[tuple[str, bytes], tuple[str, ...]] = Lru(_REMEMBERED)

    def identify(self, given: str | None, headers: Headers, body: Body) -> Identity:
        """How a request names its session; raises `BadRequest`."""
        return names.identify(given, headers, self._headers, body.endpoint, body.values)

    def patience(self) -> Patience:
        """The patience of a new request: how long it waits for the store in all."""
        return self._stored.patience()

    async def recognise(
        self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience
    ) -> Recognised:
        """The session of a transcript; a failure of the store is reported in the result."""
        blank = self._blank(tenant, identity, transcript, patience)
        try:
            return await patience.read(self._recognise(tenant, blank, transcript))
        except StoreError as error:
            self._stored.outage.failed("the store failed", error, is_request=True)
            return blank._replace(failure=error.reason)

    async def with_scope(self, found: Recognised, name: str, *, read: bool) -> Recognised:
        """The same with the scope of that name; with `read` its cards are read too, unless the store fails."""
        key = scope_key(found.key.tenant, name)
        scope = Scope(key, name)
        if read and not found.failure:
            try:
                scope = scope._replace(cards=cards_of_scope(await found.patience.read(self._stored.load(key))))
            except StoreError as error:
                self._stored.outage.failed("the cards of a scope were not read", error)
        return found._replace(scope=scope)

    def _blank(self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience) -> Recognised:
        if identity.id is not None:
            key = StoreKey(tenant, identity.key)
            return Recognised(identity, key, names.printable_id(identity.id), patience)
        task = transcript.task
        opening = transcript.chain[task].digest if task is not None else b""
        key = StoreKey(tenant, self._new_session())
        return Recognised(identity, key, names.provisional_id(tenant, opening), patience)

    async def _recognise(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        if blank.identity.id is None:
            return await self._derive(tenant, blank, transcript)
        session = await self._loaded(blank.key)
        if session is None:
            return blank
        branch = session.find_branch(transcript)
        if blank.identity.weak and branch is None:
            derived = self._blank(tenant, Identity(dialect=blank.identity.dialect), transcript, blank.patience)
            return await self._derive(tenant, derived, transcript)
        found = blank._replace(
            session=session,
            branch=branch,
            condensations=session.condensations,
            patches=session.patches,
            pins=session.pins,
            newest_turn=newest_turn(session, branch, transcript),
        )
        if not _may_be_a_window(session, branch, transcript):
            return found
        try:
            return found._replace(missing=await self._align(found, session, transcript))
        except StoreError as error:
            if branch is None:
                raise
            self._stored.outage.failed("a history was not aligned", error)
            return found

    async def _loaded(self, key: StoreKey) -> Session | None:
        session = await self._stored.load(key)
        if session is None:
            self._histories.forget(key)
        return session

    async def _align(self, found: Recognised, session: Session, transcript: Transcript) -> MissingMessages | None:
        """The messages left out by a client that sends a window of its history; None where it does not do that."""
        if len(transcript.chain) < MIN_RUN:
            return None
        heads = {branch.head for branch in session.branches}
        history = await self._histories.history(found.key, session, [head.hex() for head in heads])
        sent = [message.digest for message in transcript.chain]
        assistants = [message.role is Role.ASSISTANT for message in transcript.chain]
        alignment = align(history.tree, heads, sent, assistants)
        if alignment is None:
            return None
        missing = history.tree.line(alignment.before)[1 if alignment.kept_first else 0 :]
        return MissingMessages(tuple(missing), alignment.kept_first, history) if missing else None

    async def _derive(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        """The derived session that this transcript continues, or a fork of the one that it shares most with."""
        nodes = transcript.digests[::-1]
        if len(nodes) > _MANY:
            await asyncio.sleep(0)
        likely = self._recent_paths.first((tenant, node) for node in nodes[:_NEWEST]) or ()
        lookup = SessionLookup(self._stored, tenant, likely)
        found = await self._match(lookup, blank, transcript, nodes[:_NEWEST]) or await self._match(
            lookup, blank, transcript, nodes[_NEWEST:]
        )
        if found is None:
            return blank
        path = (found.key.name, *lookup.path(found.session.parent if found.session else found.parent))
        begins = openings(transcript.with_newest_turn(found.newest_turn))
        for node in (*nodes[:2], *(each.node for each in begins)):
            self._recent_paths.put((tenant, node), path)
        return found

    async def _match(
        self, lookup: SessionLookup, blank: Recognised, transcript: Transcript, nodes: Sequence[bytes]
    ) -> Recognised | None:
        """The session by some nodes of the chain, newest first; None where none of them leads to a derived session."""
        digests = [digest.hex() for digest in nodes]
        indexed = await lookup.names(digests) if digests else {}
        nearest: tuple[str, Session] | None = None
        for name in list(dict.fromkeys(indexed[each] for each in digests if each in indexed))[:_CANDIDATES]:
            session = await lookup.session(name)
            if session is None or not session.is_derived or session.dialect != blank.identity.dialect:
                continue
            branch = session.find_branch(transcript)
            # After a longer match was rejected, a shorter one counts only if its reply proves the conversation.
            if branch is not None and is_answered_alike(branch, transcript, must_be_known=nearest is not None):
                recognised = await _with_records(lookup, blank, session)
                key, newest = StoreKey(lookup.tenant, name), newest_turn(session, branch, transcript)
                return recognised._replace(key=key, shown_id=name, session=session, branch=branch, newest_turn=newest)
            # Not continued: another conversation may have sent the same messages and be ahead of this one.
            nearest = nearest or (name, session)
        if nearest is None:
            return None
        name, session = nearest
        node = next(digest for digest in nodes if indexed.get(digest.hex()) == name)
        inherited = transcript.digests.index(node) + 1
        recognised = await _with_records(lookup, blank, session)
        # A fork links to the nearest session that has more for it, so that chains of forks of conversations that begin
        # alike stay short.
        parent = name if session.has_more_for_fork(inherited) else session.parent
        newest = newest_turn(session, session.find_branch(transcript), transcript, inherited)
        return recognised._replace(parent=parent, inherited=inherited, newest_turn=newest)

    async def appended_history(
        self, tenant: str, identity: Identity, patience: Patience, *, writes: bool = False
    ) -> History:
        """The history that append mode has stored under an explicit id.

        Raises `StoreError`, with `writes` also where nothing can be stored now.
        """
        try:
            key = StoreKey(tenant, identity.key)
            return await patience.read(self._history(key, writes=writes))
        except StoreError as error:
            self._stored.outage.failed("a history was not read", error)
            raise

    async def _history(self, key: StoreKey, *, writes: bool) -> History:
        if writes and (failure := await self._stored.why_unwritable()):
            raise StoreError(failure)
        session = await self._loaded(key)
        if session is None or not session.tip.block:
            return History()
        stored = await self._histories.history(key, session, [session.tip.block])
        try:
            return history_at(session.tip, stored.appended)
        except KeyError as missing:
            raise StoreError("store-corrupt", f"block {missing} of an appended history is gone") from None


def _may_be_a_window(session: Session, branch: Branch | None, transcript: Transcript) -> bool:
    """Whether a transcript may be the newest part of a stored branch: it continues no branch from its beginning.

    It may also be one if it continues `branch` with the last message rewritten, and the session has other branches:
    that branch may have begun as such a window itself.
    """
    if branch is None:
        return bool(session.branches)
    return len(session.branches) > 1 and not has_node(transcript.digests, branch.count, branch.head)


async def _with_records(lookup: SessionLookup, blank: Recognised, session: Session) -> Recognised:
    """`blank` with the pins of a session, and the condensations and hidden rounds of it and its ancestors.

    A session and its ancestor may have the same condensation: then the session's own copy says whether it stands.
    """
    sessions = [session, *await lookup.ancestors(session)]
    condensations = tuple({each.id: each for one in reversed(sessions) for each in one.condensations}.values())
    patches = tuple(each for one in reversed(sessions) for each in one.patches)
    return blank._replace(condensations=condensations, patches=patches, pins=session.pins)


_ANCESTORS = 8


@dataclass(slots=True, eq=False)
class SessionLookup:
    """Reads a tenant's sessions for one request; the `likely` ones come with the first names."""

    _stored: StoredSessions
    tenant: str
    _likely: Sequence[str]
    _sessions: dict[str, Session | None] = field(default_factory=dict, init=False)

    async def names(self, digests: Sequence[str]) -> Mapping[str, str]:
        """The names of sessions that the index has for these digests, by digest."""
        likely, self._likely = self._likely, ()
        found, sessions = await self._stored.find(self.tenant, digests, likely)
        self._sessions.update(sessions)
        return found

    async def session(self, name: str) -> Session | None:
        if name not in self._sessions:
            self._sessions[name] = await self._stored.load(StoreKey(self.tenant, name))
        return self._sessions[name]

    async def ancestors(self, session: Session) -> list[Session]:
        """The sessions that it forked from, nearest first, at most `_ANCESTORS`."""
        ancestors: list[Session] = []
        parent = session.parent
        while parent and len(ancestors) < _ANCESTORS and (ancestor := await self.session(parent)):
            ancestors.append(ancestor)
            parent = ancestor.parent
        return ancestors

    def path(self, name: str | None) -> Iterator[str]:
        """The name of a session and the names of its ancestors, as far as they were read."""
        for _ in range(_ANCESTORS):
            if not name:
                return
            yield name
            session = self._sessions.get(name)
            name = session.parent if session else None
