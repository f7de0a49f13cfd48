"""Recognising a conversation: from a request to its session.

An explicit id names its session. Without one the chain index is asked for the longest known prefix of the transcript;
a session that is to be continued is verified, for the index is only a hint. A derived session never holds two
conversations: what forks from it gets a new id and a link to its parent, whose condensations it may read.

Whatever fails is told in `failure`, and the request goes on as if nothing were known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from proxy.http.headers import Headers
from proxy.memory.scopes import Scope, scope_key, shared_by
from proxy.request import identity as names
from proxy.request.identity import Identity
from proxy.runtime.lru import Lru
from proxy.sessions.append import History, history
from proxy.sessions.histories import Histories
from proxy.sessions.restoring import Restored
from proxy.sessions.session import Session, is_answered_alike
from proxy.sessions.stored import Patience, StoredSessions
from proxy.store.base import SessionKey, StoreError
from strategies.core.alignment import LEAST_RUN, align
from strategies.core.condensation import Condensation, Overlay
from strategies.core.transcript import Role, Transcript

_CANDIDATES = 4
_NEWEST = 16
"""Nodes that are asked for first: a conversation that goes on is found by one of its last."""
_ANCESTORS = 8
_REMEMBERED = 1_000
"""Ends of conversations of which it is known which sessions their next turn will have to read."""

_log = logging.getLogger(__name__)


class Recognised(NamedTuple):
    """The session of a request. `session` is None where it is new; `key` is where it is or would be stored.

    Of a fork the first `inherited` messages are its `parent`'s too. `patience` is what the request has left for the
    store. `patches` are hidden rounds, the newest last. `scope` is what its session shares cards with.
    """

    identity: Identity
    key: SessionKey
    shown: str
    patience: Patience
    session: Session | None = None
    condensations: tuple[Condensation, ...] = ()
    patches: tuple[Overlay, ...] = ()
    parent: str | None = None
    inherited: int = 0
    failure: str = ""
    restored: Restored | None = None
    scope: Scope | None = None

    def last_applied(self, transcript: Transcript) -> str | None:
        """What the last view of this transcript's branch applied; None where the branch is not known.

        A derived conversation that is new to us has sent its own messages until now: what others that begin like it
        have applied is used only where it must be condensed anyway.
        """
        if self.session is None:
            return "" if self.is_derived else None
        branch = self.session.branch_of(transcript.digests)
        return branch.applied if branch else None

    def apart(self) -> Recognised:
        """The same for work that its request does not wait for: it has a patience of its own."""
        return self._replace(patience=self.patience.anew())

    @property
    def is_derived(self) -> bool:
        """Whether it was recognised by its chain."""
        return self.identity.id is None


class Recogniser:
    """Finds sessions; one per app. `headers` are those that may name one, in order."""

    def __init__(
        self,
        stored: StoredSessions,
        headers: Sequence[str],
        new_session: Callable[[], str] = names.random_session,
    ) -> None:
        self._stored = stored
        self._histories = Histories(stored)
        self._headers = names.listed(headers)
        self._new_session = new_session
        self._lately: Lru[tuple[str, bytes], tuple[str, ...]] = Lru(_REMEMBERED)

    def identify(self, given: str | None, headers: Headers, body: Mapping[str, object]) -> Identity:
        """Which session a request names; raises `BadRequest`."""
        return names.identify(given, headers, body, self._headers)

    def patience(self) -> Patience:
        """How long one request waits for the store, in all that is done for it."""
        return self._stored.patience()

    async def recognise(
        self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience
    ) -> Recognised:
        """The session of a transcript; a store that fails is told in the result."""
        blank = self._blank(tenant, identity, transcript, patience)
        try:
            return await patience.read(self._recognise(tenant, blank, transcript))
        except StoreError as error:
            _log.warning("the store failed: %s", error)
            return blank._replace(failure=error.reason)

    async def scoped(self, found: Recognised, name: str, *, read: bool) -> Recognised:
        """A session with the scope of that name, and with its cards where they are to be `read` and can be."""
        key = scope_key(found.key.tenant, name)
        scope = Scope(key, name)
        if read and not found.failure:
            try:
                scope = scope._replace(cards=shared_by(await found.patience.read(self._stored.load(key))))
            except StoreError as error:
                _log.warning("the cards of a scope were not read: %s", error)
        return found._replace(scope=scope)

    def _blank(self, tenant: str, identity: Identity, transcript: Transcript, patience: Patience) -> Recognised:
        if identity.id is not None:
            key = SessionKey(tenant, names.session_key(identity.id))
            return Recognised(identity, key, names.shown(identity.id), patience)
        task = transcript.task
        opening = transcript.chain[task].digest if task is not None else b""
        key = SessionKey(tenant, self._new_session())
        return Recognised(identity, key, names.provisional(tenant, opening), patience)

    async def _recognise(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        if blank.identity.id is None:
            return await self._derive(tenant, blank, transcript)
        session = await self._loaded(blank.key)
        if session is None:
            return blank
        if blank.identity.weak and session.branch_of(transcript.digests) is None:
            derived = self._blank(tenant, Identity(), transcript, blank.patience)
            return await self._derive(tenant, derived, transcript)
        found = blank._replace(session=session, condensations=session.condensations, patches=session.patches)
        if session.branches and session.branch_of(transcript.digests) is None:
            return found._replace(restored=await self._align(found, session, transcript))
        return found

    async def _loaded(self, key: SessionKey) -> Session | None:
        session = await self._stored.load(key)
        if session is None:
            self._histories.forget(key)
        return session

    async def _align(self, found: Recognised, session: Session, transcript: Transcript) -> Restored | None:
        """What a client that sends a window of its history has left out, or None where that is not what it did."""
        if len(transcript.chain) < LEAST_RUN:
            return None
        heads = {branch.head for branch in session.branches}
        history = await self._histories.history(found.key, session, [head.hex() for head in heads])
        sent = [message.digest for message in transcript.chain]
        assistants = [message.role is Role.ASSISTANT for message in transcript.chain]
        alignment = align(history.tree, heads, sent, assistants)
        if alignment is None:
            return None
        missing = history.tree.line(alignment.before)[1 if alignment.kept_first else 0 :]
        return Restored(tuple(missing), alignment.kept_first, history) if missing else None

    async def _derive(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        """The derived session that this transcript continues, or a fork of the one it shares most with."""
        nodes = transcript.digests[::-1]
        likely = self._lately.first((tenant, node) for node in nodes[:_NEWEST]) or ()
        looked = Looked(self._stored, tenant, likely)
        found = await self._derived(looked, blank, transcript, nodes[:_NEWEST]) or await self._derived(
            looked, blank, transcript, nodes[_NEWEST:]
        )
        if found is None:
            return blank
        line = (found.key.session, *looked.line(found.session.parent if found.session else found.parent))
        for node in nodes[:2]:
            self._lately.put((tenant, node), line)
        return found

    async def _derived(
        self, looked: Looked, blank: Recognised, transcript: Transcript, nodes: Sequence[bytes]
    ) -> Recognised | None:
        """The same by some nodes of the chain, newest first; None where none of them leads to a session."""
        digests = [digest.hex() for digest in nodes]
        found = await looked.names(digests) if digests else {}
        nearest: tuple[str, Session] | None = None
        for name in list(dict.fromkeys(found[each] for each in digests if each in found))[:_CANDIDATES]:
            session = await looked.session(name)
            if session is None or not session.derived:
                continue
            branch = session.branch_of(transcript.digests)
            if branch is not None and is_answered_alike(branch, transcript):
                known = await _knowing(looked, blank, session)
                return known._replace(key=SessionKey(looked.tenant, name), shown=name, session=session)
            # Its later messages may be those of a conversation that this one goes the same way as, and lags behind.
            nearest = nearest or (name, session)
        if nearest is None:
            return None
        name, session = nearest
        node = next(digest for digest in nodes if found.get(digest.hex()) == name)
        inherited = transcript.digests.index(node) + 1
        known = await _knowing(looked, blank, session)
        # No line of forks grows out of conversations that begin alike: nobody would follow it to its end.
        parent = name if session.passes_on(inherited) else session.parent
        return known._replace(parent=parent, inherited=inherited)

    async def history(self, tenant: str, identity: Identity, patience: Patience) -> History:
        """What append mode has stored under an explicit id; raises `StoreError`."""
        return await patience.read(self._history(SessionKey(tenant, names.session_key(identity.id or ""))))

    async def _history(self, key: SessionKey) -> History:
        session = await self._loaded(key)
        if session is None or not session.line.block:
            return History()
        stored = await self._histories.history(key, session, [session.line.block])
        try:
            return history(session.line, stored.appended)
        except KeyError as missing:
            raise StoreError("store-corrupt", f"block {missing} of an appended history is gone") from None


class Looked:
    """What one request has read of a tenant's sessions, each once; those that are `likely` come with the first names.

    What is likely is a guess that saves a step: it may name sessions that are gone, or lead elsewhere.
    """

    def __init__(self, stored: StoredSessions, tenant: str, likely: Sequence[str]) -> None:
        self.tenant = tenant
        self._stored = stored
        self._likely = likely
        self._sessions: dict[str, Session | None] = {}

    async def names(self, digests: Sequence[str]) -> Mapping[str, str]:
        """The sessions that the index names, by digest."""
        likely, self._likely = self._likely, ()
        found, sessions = await self._stored.find(self.tenant, digests, likely)
        self._sessions.update(sessions)
        return found

    async def session(self, name: str) -> Session | None:
        """The session of that name, None where there is none."""
        if name not in self._sessions:
            self._sessions[name] = await self._stored.load(SessionKey(self.tenant, name))
        return self._sessions[name]

    async def ancestors(self, session: Session) -> list[Session]:
        """The sessions that it forked from, nearest first."""
        known: list[Session] = []
        parent = session.parent
        while parent and len(known) < _ANCESTORS and (ancestor := await self.session(parent)):
            known.append(ancestor)
            parent = ancestor.parent
        return known

    def line(self, name: str | None) -> Iterator[str]:
        """The name of a session and those of its ancestors, as far as they were read."""
        for _ in range(_ANCESTORS):
            if not name:
                return
            yield name
            session = self._sessions.get(name)
            name = session.parent if session else None


async def _knowing(looked: Looked, blank: Recognised, session: Session) -> Recognised:
    """The same with what a session and its ancestors have recorded."""
    line = [session, *await looked.ancestors(session)]
    known = tuple(each for one in line for each in one.condensations)
    patches = tuple(each for one in reversed(line) for each in one.patches)
    return blank._replace(condensations=known, patches=patches)
