"""What an operator sees of sessions, and may delete: documents made from the store, for whoever has the token.

The documents have the text of conversations where the store keeps it, so they go to nobody else and into no log.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxy.errors import BadRequest
from proxy.memory.scopes import SOURCE as SCOPE
from proxy.memory.scopes import key_of_shown
from proxy.request.identity import session_key
from proxy.runtime.secret_files import beside, made_once
from proxy.sessions.append import history
from proxy.sessions.blocks import Stored
from proxy.sessions.histories import StoredHistory
from proxy.sessions.session import Branch, Session
from proxy.sessions.stored import StoredSessions
from proxy.settings import Settings
from proxy.store.base import SessionKey, StoreError
from proxy.store.codec import encode_condensation, encode_verdict
from strategies.core.alignment import Tree
from strategies.core.cards import to_json
from strategies.core.condensation import Condensation
from strategies.core.parsing import loads

TOKEN_FILE = "admin.token"  # noqa: S105

Document = dict[str, Any]


class Admin:
    """Sessions for an operator. All but `allows` raise `StoreError`; a `token` of None lets nobody in."""

    def __init__(self, stored: StoredSessions, token: str | None) -> None:
        self._stored = stored
        self._token = token.encode() if token else None

    @property
    def closed(self) -> bool:
        """Whether there is no token that would open it."""
        return self._token is None

    def allows(self, authorization: bytes) -> bool:
        """Whether the value of an `Authorization` header has the token."""
        scheme, _, given = authorization.partition(b" ")
        return self._token is not None and scheme.lower() == b"bearer" and compare_digest(given.strip(), self._token)

    async def listed(self, tenant: str | None = None, name: str | None = None) -> Document:
        """A row for each session, newest first: of all or of one tenant, and of one name where that is given."""
        names = None if name is None else {name, session_key(name), key_of_shown(name)}
        keys = [key for key in await self._stored.store.sessions(tenant) if names is None or key.session in names]
        loaded = [each async for each in self._loaded(keys)]
        rows = [_summary(key, session) for key, session in loaded if session is not None]
        unreadable = [{"tenant": key.tenant, "session": key.session} for key, session in loaded if session is None]
        rows.sort(key=lambda row: row["created_at"], reverse=True)
        return {"object": "list", "data": rows, "unreadable": unreadable}

    async def found(self, name: str, tenant: str | None = None) -> Document | None:
        """The one session with a key or an id, of all tenants or of one; raises `BadRequest` where several have it."""
        listed = await self.listed(tenant, name)
        keys = [SessionKey(row["tenant"], row["session"]) for row in (*listed["data"], *listed["unreadable"])]
        if len(keys) > 1:
            places = ", ".join(f"{key.tenant}/{key.session}" for key in keys)
            raise BadRequest(
                f"{len(keys)} sessions have this id; name one as TENANT/SESSION, or its tenant with ?tenant=: {places}",
                param="tenant",
                code="ambiguous_session",
            )
        return await self.session(keys[0]) if keys else None

    async def session(self, key: SessionKey) -> Document | None:
        """One session with all that is kept of it; None where there is none."""
        patience = self._stored.patience()
        session = await patience.read(self._stored.load(key))
        if session is None:
            return None
        blocks = await patience.read(self._stored.blocks(key, session))
        try:
            return await asyncio.to_thread(_whole, key, session, blocks)
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a block cannot be read: {type(error).__name__}") from None

    async def delete(self, key: SessionKey) -> bool:
        """Removes all of a session, also one that cannot be read; whether there was one."""
        return await self._stored.in_time(self._stored.store.delete(key))

    async def delete_tenant(self, tenant: str) -> int:
        """Removes all sessions of a tenant, what was never saved included; how many there were."""
        keys = await self._stored.store.sessions(tenant)
        for key in keys:
            await self.delete(key)
        return len(keys)

    async def stats(self) -> Document:
        """Counts over all sessions that live."""
        totals: Counter[str] = Counter()
        tenants: set[str] = set()
        async for key, session in self._loaded(await self._stored.store.sessions()):
            if session is not None and session.source != SCOPE:
                tenants.add(key.tenant)
                totals.update(sessions=1, branches=len(session.branches), condensations=len(session.condensations))
                totals.update(session.totals)
        counted = ("sessions", "branches", "condensations", "requests", "client_tokens", "forwarded_tokens")
        own = ("own_tokens", "judge_tokens", "embedding_tokens", "votes")
        names = (*counted, *own, "prompt_tokens", "cached_tokens", "completion_tokens")
        return {"object": "stats", "tenants": len(tenants), **{name: totals[name] for name in names}}

    async def _loaded(self, keys: Iterable[SessionKey]) -> AsyncIterator[tuple[SessionKey, Session | None]]:
        """Each session that was saved, one after the other, so that requests come in between; None for a broken one."""
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


def admin_token(settings: Settings) -> str | None:
    """The token of the settings, else the one beside the store, made where only this machine can ask; else None."""
    if settings.admin.token is not None:
        return settings.admin.token.get_secret_value()
    path = token_file(settings)
    return (made_once(path).decode("ascii", "replace").strip() or None) if path else None


def token_file(settings: Settings) -> Path | None:
    """The file that has the token of a proxy with these settings; None where no file has it."""
    if settings.admin.token is not None or not is_loopback(settings.host):
        return None
    return beside(settings.store.url, TOKEN_FILE)


def known_token(settings: Settings, url: str | None = None) -> str | None:
    """The token as one who asks `url` finds it: of the settings, else of the file if that can be read.

    The file's goes to no other machine: only a proxy on this one can have made it.
    """
    if settings.admin.token is not None:
        return settings.admin.token.get_secret_value()
    path = beside(settings.store.url, TOKEN_FILE)
    try:
        local = url is None or is_loopback(urlsplit(url).hostname or "")
        return path.read_text("ascii").strip() if path and local else None
    except (OSError, ValueError):
        return None


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only; a name that is no address counts as reached from others."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Documents


def _summary(key: SessionKey, session: Session) -> Document:
    return {
        **_head(key, session),
        "branches": len(session.branches),
        "condensations": len(session.condensations),
        "totals": dict(session.totals),
    }


def _head(key: SessionKey, session: Session) -> Document:
    return {
        "tenant": key.tenant,
        "session": key.session,
        "id": session.id,
        "source": session.source,
        "created_at": session.created_at,
    }


def _whole(key: SessionKey, session: Session, blocks: Mapping[str, bytes]) -> Document:
    found = StoredHistory.of(blocks)
    return {
        "object": "session",
        **_head(key, session),
        "parent": session.parent,
        "settings": dict(session.settings),
        "totals": dict(session.totals),
        "branches": [_branch(each, found.tree) for each in session.branches],
        "condensations": [
            {**_condensation(each), "saved_tokens": session.saved.get(each.id, 0)} for each in session.condensations
        ],
        "judging": dict(session.judging),
        "memory": json.loads(to_json(session.cards())),
        "verdicts": [encode_verdict(each) for each in session.verdicts],
        "appended": [each.value for each in history(session.line, found.appended).elements],
    }


def _branch(branch: Branch, tree: Tree[Stored]) -> Document:
    """A branch with its messages from the first one on; null for one whose text was not kept."""
    return {
        "name": branch.name,
        "head": branch.head.hex(),
        "count": branch.count,
        "last_used": branch.last_used,
        "applied": branch.applied,
        "messages": list(_messages(tree.line(branch.head))),
    }


def _messages(line: Iterable[Stored]) -> Iterator[Any]:
    for each in line:
        yield None if each.raw is None else loads(each.raw)


def _condensation(condensation: Condensation) -> Document:
    """A condensation as it is stored: `[from, to]` is a run of kept messages, all else are messages of ours."""
    document: Document = json.loads(encode_condensation(condensation))
    del document["v"]
    return {**document, "standing": condensation.standing}
