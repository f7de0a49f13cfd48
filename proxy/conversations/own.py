"""What a caller may read of its own sessions: a search in one, and the message behind a handle.

A session is known by its id in the caller's tenant only, and a handle in the sessions of that tenant only, so that an
answer never tells what another tenant has. Without an id only the sessions count that were used in the last hour, and
only where one alone can be meant.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from proxy.callers.tenants import ALWAYS, Trust
from proxy.conversations.admin import TOP_K, Document, MemoryAdmin
from proxy.conversations.cards import SOURCE as SCOPE
from proxy.conversations.histories import StoredHistory, lines_on, read_in_thread
from proxy.conversations.session import MAIN, Branch, Session, session_key
from proxy.conversations.stored import StoredSessions
from proxy.errors import BadRequest, NotKnown
from proxy.store.base import StoreError, StoreKey
from strategies.core.handles import handle_of
from strategies.core.messages import Message, Reader
from strategies.dialects import DIALECTS
from strategies.memory.ranking import message_entries

MOST_SESSIONS = 32
"""How many sessions are read for a handle that comes without one."""
LATELY = 3_600.0  # seconds
_SHOWN = 8
_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_log = logging.getLogger(__name__)
_Found = tuple[StoreKey, Session]


@dataclass(frozen=True, slots=True)
class OwnSessions:
    """Reads the sessions of one tenant for its caller; one per app.

    `clock` gives seconds since the epoch. Methods raise `BadRequest`, `NotKnown` and `StoreError`.
    """

    stored: StoredSessions
    memory: MemoryAdmin
    reader: Reader
    clock: Callable[[], float]
    trust: Trust = ALWAYS  # in the caller
    only: Collection[StoreKey] | None = None  # the sessions that may be read; None: all of the tenant

    async def search(self, tenant: str, name: str | None, query: str, top_k: int = TOP_K) -> Document:
        """The messages and cards that match a query, best first, on the branch that was used last."""
        sessions = await self._named(tenant, name) if name is not None else await self._lately(tenant)
        if len(sessions) > 1:
            raise _ambiguous("Several sessions of yours are known", sessions)
        if not sessions:
            raise _no_session()
        ((key, session),) = sessions
        newest = next(iter(_branches(session)), None)
        found = await self.memory.search(key, query, newest.name if newest else MAIN, top_k)
        if found is None:  # deleted meanwhile
            raise _no_session()
        return {**found, "session": session.id}

    async def expand(self, tenant: str, name: str | None, handle: str) -> Document:
        """The message with a handle, word for word: its text, and its calls with their arguments."""
        sessions = await self._named(tenant, name) if name is not None else await self._lately(tenant)
        if name is None and len(sessions) > MOST_SESSIONS:
            raise _ambiguous("Too many sessions of yours are known to look for a handle in all of them", sessions)
        holding = [(pair, found) for pair in sessions if (found := await self._message(*pair, handle)) is not None]
        if len(holding) > 1:
            raise _ambiguous("Several sessions of yours have this handle", [pair for pair, _ in holding])
        if not holding:
            where = "session" if name is not None else "session that was used in the last hour"
            raise NotKnown(f"No {where} of yours has a message with this handle.", param="handle")
        (((_, session), message),) = holding
        text = "".join(entry.text for entry in message_entries("", message, 0))
        return {
            "object": "message",
            "session": session.id,
            "handle": handle,
            "role": message.role.value,
            "text": text,
        }

    async def _named(self, tenant: str, name: str) -> list[_Found]:
        """The sessions with this id, one for each protocol at most, or the one with this key."""
        keys = [session_key(name, dialect) for dialect in DIALECTS]
        named = [StoreKey(tenant, each) for each in ([name, *keys] if _NAME.fullmatch(name) else keys)]
        return [(key, found) for key in named if (found := await self._loaded(key)) is not None]

    async def _lately(self, tenant: str) -> list[_Found]:
        found: list[_Found] = []
        # One more than may be meant: however many there are, no more is read.
        for key in await self.stored.in_time(self.stored.store.newest(MOST_SESSIONS + 1, tenant)):
            try:
                session = await self._loaded(key)
                if session is not None and _last_used(session) < self.clock() - LATELY:
                    break  # those that follow were used before
                if session is not None and session.source != SCOPE:
                    found.append((key, session))
            except StoreError as error:
                if error.reason != "store-corrupt":
                    raise
                _log.warning("a session cannot be searched: %s", error)  # the others stay in use
        return found

    async def _loaded(self, key: StoreKey) -> Session | None:
        if self.only is not None and key not in self.only:
            return None
        session = await self.stored.in_time(self.stored.load(key))
        shown = session is not None and await self.trust.shows(session.traits, self.stored.patience())
        return session if shown else None

    async def _message(self, key: StoreKey, session: Session, handle: str) -> Message | None:
        blocks = await self.stored.in_time(self.stored.blocks(key, session))
        return await read_in_thread(self._find, session, blocks, handle)

    def _find(self, session: Session, blocks: Mapping[str, bytes], handle: str) -> Message | None:
        stored = StoredHistory.of(blocks, session.dialect)
        branches: Sequence[Branch | None] = _branches(session) or [None]
        lines = (line for branch in branches for line in lines_on(session, branch, stored, self.reader))
        messages = chain.from_iterable(lines)
        return next((each for each in messages if handle_of(each) == handle and message_entries("", each, 0)), None)


def _branches(session: Session) -> list[Branch]:
    """The branches, the one that was used last first."""
    return sorted(session.branches, key=lambda branch: branch.last_used, reverse=True)


def _last_used(session: Session) -> float:
    return max((branch.last_used for branch in session.branches), default=session.created_at)


def _no_session() -> NotKnown:
    return NotKnown("No session of yours has this id, or none is known; name one in 'session'.", param="session")


def _ambiguous(why: str, sessions: Sequence[_Found]) -> BadRequest:
    names = list(dict.fromkeys(session.id for _, session in sessions))
    if len(names) == 1:  # one id in several protocols
        names = [key.name for key, _ in sessions]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return BadRequest(f"{why}; name one in 'session': {shown}.", param="session", code="ambiguous_session")
