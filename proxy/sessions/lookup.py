"""Reads the sessions that one request needs to find its own: candidates of the index, and their ancestors.

Each is read once. Those that the request will probably need are read together with the index, in one exchange with the
store. Which ones is a guess by the caller: a session may be gone, or not be needed, and that costs nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from proxy.sessions.session import Session
from proxy.sessions.stored import StoredSessions
from proxy.store.base import SessionKey

_ANCESTORS = 8


class SessionLookup:
    """Reads a tenant's sessions for one request; the `likely` ones come with the first names."""

    def __init__(self, stored: StoredSessions, tenant: str, likely: Sequence[str]) -> None:
        self.tenant = tenant
        self._stored = stored
        self._likely = likely
        self._sessions: dict[str, Session | None] = {}

    async def names(self, digests: Sequence[str]) -> Mapping[str, str]:
        """The names of sessions that the index has for these digests, by digest."""
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
