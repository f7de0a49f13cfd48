"""Taking over: a request that names an earlier reply in place of its history gets that history from the store.

A server that keeps its replies lets a client name the newest one and send only what is new. So the proxy stores each
such reply in a block of its own: what the client sent for it, the reply, and the name of the block of the reply before.
The block is named by a digest of the reply's id, and the chain index leads from there to the session that has it.

A conversation is stored from its first request on, in which no model has said anything; a client that sends what a
model said keeps its history itself. In a session that forks from the one that has the history, the first block repeats
all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from proxy.endpoints.replies import Items
from proxy.request.client_request import GoesOn
from proxy.request.wire import Body
from proxy.sessions.append import Append, Tip, history_at
from proxy.sessions.histories import Histories
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError, StoreKey
from strategies.core.digest import DIGEST_BYTES


class KeptReplies:
    """Reads the histories that end with stored replies; one per app."""

    def __init__(self, stored: StoredSessions) -> None:
        self._stored = stored
        self._histories = Histories(stored)

    async def supplied(self, tenant: str, body: Body) -> tuple[Body, GoesOn | None]:
        """The body of a request with the history that it names; unchanged and None where that is not known."""
        named = body.values.get(body.endpoint.previous_reply)
        if named is None:
            return body, GoesOn() if body.endpoint.is_kept(body.values) else None
        if not isinstance(named, str):
            return body, None
        try:
            return await self._stored.patience().read(self._supplied(tenant, named, body))
        except StoreError as error:
            self._stored.outage.failed("a stored reply was not read", error)
            return body, None

    async def _supplied(self, tenant: str, reply_id: str, body: Body) -> tuple[Body, GoesOn | None]:
        name = block_name(reply_id)
        found, _ = await self._stored.find(tenant, [name], ())
        key = StoreKey(tenant, found.get(name, ""))
        session = await self._stored.load(key) if key.name else None
        if session is None or session.dialect != body.endpoint.dialect.name:
            return body, None
        history = await self._histories.history(key, session, [name])
        try:
            before = history_at(Tip("", name), history.appended).elements
        except KeyError:
            return body, None
        return body.with_history((*before, *body.elements)), GoesOn(name, key.name, len(before))


def block_name(reply_id: str) -> str:
    """The name of the block of a reply with this id."""
    return blake2b(reply_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"reply").hexdigest()


def reply_block(goes_on: GoesOn, body: Body, session: str, reply_id: str, reply: Items) -> Mapping[str, bytes]:
    """The block that stores the reply to a request in a session, by its name; empty for a reply without an id."""
    if not (reply and reply_id):
        return {}
    is_here = goes_on.session == session
    base, start = (goes_on.name, goes_on.supplied) if is_here else ("", 0)
    _, data = Append(Tip("", base), tuple(body.elements[start:]), "").block(reply)
    return {block_name(reply_id): data}
