"""Recognising a conversation: from a request to its session.

An explicit id names its session. Without one the chain index is asked for the longest known prefix of the transcript;
the session that it leads to is verified, for the index is only a hint. A derived session never holds two conversations:
what forks from it gets a new id and a link to its parent, whose condensations it may read.

Whatever fails is told in `failure`, and the request goes on as if nothing were known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from proxy import identity as names
from proxy.append import History, history
from proxy.blocks import Stored, line_to, nodes
from proxy.headers import Headers
from proxy.identity import Identity
from proxy.sessions import Session
from proxy.store.base import SessionKey, StoreError
from proxy.stored import StoredSessions
from strategies.core.alignment import LEAST_RUN, align, openings
from strategies.core.condensation import Condensation
from strategies.core.transcript import Role, Transcript

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


class Recogniser:
    """Finds sessions; one per app. `headers` are those that may name one, in order."""

    def __init__(
        self,
        stored: StoredSessions,
        headers: Sequence[str],
        new_session: Callable[[], str] = names.random_session,
    ) -> None:
        self._stored = stored
        self._headers = headers
        self._new_session = new_session

    def identify(self, given: str | None, headers: Headers, body: dict[str, object]) -> Identity:
        """Which session a request names; raises `BadRequest`."""
        return names.identify(given, headers, body, self._headers)

    async def recognise(self, tenant: str, identity: Identity, transcript: Transcript) -> Recognised:
        """The session of a transcript; a store that fails is told in the result."""
        blank = self._blank(tenant, identity, transcript)
        try:
            return await self._stored.in_time(self._recognise(tenant, blank, transcript))
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
        session = await self._stored.load(blank.key)
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
        stored = nodes(await self._stored.store.blocks(found.key))
        sent = [message.digest for message in transcript.chain]
        assistants = [message.role is Role.ASSISTANT for message in transcript.chain]
        lines = [line_to(branch.head, stored) for branch in session.branches]
        for line in lines:
            alignment = align([each.digest for each in line], sent, assistants)
            if alignment is None or _histories_behind(lines, sent[1:] if alignment.kept_first else sent) != 1:
                continue
            missing = [line[i].raw for i in alignment.missing()]
            texts = tuple(raw for raw in missing if raw is not None)
            return Restored(texts, alignment.kept_first) if len(texts) == len(missing) else None
        return None

    async def _derive(self, tenant: str, blank: Recognised, transcript: Transcript) -> Recognised:
        """The derived session that this transcript continues, or a fork of the one it shares most with."""
        digests = [digest.hex() for digest in reversed(transcript.digests)]
        found = await self._stored.store.find(tenant, digests)
        for name in list(dict.fromkeys(found[each] for each in digests if each in found))[:_CANDIDATES]:
            session = await self._stored.load(SessionKey(tenant, name))
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
            ancestor = await self._stored.load(SessionKey(tenant, parent)) if parent else None
            if ancestor is None:
                break
            known.extend(ancestor.condensations)
            parent = ancestor.parent
        return tuple(known)

    async def history(self, tenant: str, identity: Identity) -> History:
        """What append mode has stored under an explicit id; raises `StoreError`."""
        return await self._stored.in_time(self._history(SessionKey(tenant, names.session_key(identity.id or ""))))

    async def _history(self, key: SessionKey) -> History:
        session = await self._stored.load(key)
        if session is None or not session.line.block:
            return History()
        try:
            return history(session.line, await self._stored.store.blocks(key))
        except KeyError as missing:
            raise StoreError("store-corrupt", f"block {missing} of an appended history is gone") from None


def _histories_behind(lines: Sequence[Sequence[Stored]], sent: Sequence[bytes]) -> int:
    """How many different histories of the session go on as what was sent begins; only one may be put back."""
    return len({line[i].before for line in lines for i in openings([each.digest for each in line], sent)})
