"""Append mode: the client sends only its new messages, and the proxy supplies the stored ones before them.

Each append stores one immutable block: the messages that the client sent and the reply, linked to the block before.
The session names its newest block. A head, `<count>-<digest>`, is the length and the chain digest of the history up to
the last message that the client sent; the reply is stored under that head. A client guards an append with `If-Head`:
it must name the newest head. If it names the head before, and its messages lead to the newest one, it repeats the
append that was stored last, and replaces that append, the reply included. Messages and reply are stored together or not
at all.

`KeptReplies` takes histories over. A server that keeps its replies lets a client name the newest one and send only what
is new. So the proxy stores each such reply in a block of its own: what the client sent for it, the reply, and the name
of the block of the reply before. The block is named by a digest of the reply's id, and the chain index leads from there
to the session that has it. Such a conversation is stored from its first request on, in which no model has said
anything; a client that sends what a model said keeps its history itself. In a session that forks from the one that has
the history, the first block repeats all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from proxy.controls import Controls
from proxy.endpoints.replies import Items
from proxy.errors import BadRequest, HeadMismatch
from proxy.request.message_cache import Element
from proxy.request.wire import Body, GoesOn
from proxy.sessions.codec import BLOCK_VERSION
from proxy.sessions.histories import Histories, History, history_at
from proxy.sessions.session import EMPTY, Tip
from proxy.sessions.stored import StoredSessions
from proxy.store.base import StoreError, StoreKey
from strategies.core.digest import DIGEST_BYTES, chain
from strategies.core.messages import dump


class Append(NamedTuple):
    """One append that is not stored yet: the tip it builds on, the messages that the client sent, and its head.

    `current_head` is the newest stored head, which stays valid until the append is stored.
    """

    base: Tip
    sent: tuple[Element, ...]
    head: str
    current_head: str = EMPTY

    def block(self, reply: Items) -> tuple[Tip, bytes]:
        """The tip of the history after this append, and the block that stores the append with its reply.

        The last item of the reply stands by itself, as it has since every reply was one message.
        """
        *items, last = map(dump, reply)
        document = {
            "v": BLOCK_VERSION,
            "before": [self.base.head, self.base.block],
            "messages": [*(element.raw for element in self.sent), *items],
            "reply": last,
        }
        data = json.dumps(document).encode()
        return Tip(self.head, blake2b(data, digest_size=16).hexdigest()), data


def head_after(elements: Sequence[Element]) -> str:
    """The head of a history with these messages, as headers show it."""
    digests = chain(each.digest for each in elements if each.role not in each.endpoint.dialect.system_roles)
    return f"{len(digests)}-{digests[-1].hex()}" if digests else EMPTY


def append_to(stored: History, sent: Sequence[Element], if_head: str | None) -> tuple[Append, tuple[Element, ...]]:
    """The append of the `sent` messages to a stored history, and the whole history with them.

    Raises `HeadMismatch` with the newest head where `if_head` names another one, unless this is a repetition of the
    append that led to the newest head.
    """
    base, before = stored.tip, stored.elements
    if if_head is not None and if_head != base.head:
        base, before = stored.tip_before, stored.elements_before
        if if_head != base.head or head_after((*before, *sent)) != stored.tip.head:
            raise HeadMismatch(stored.tip.head, if_head)
    history = (*before, *sent)
    return Append(base, tuple(sent), head_after(history), stored.tip.head), history


def check_append(controls: Controls, body: Body, session: str | None, *, keeps_text: bool) -> None:
    """Raises `BadRequest` unless the store keeps text, the session is named, storing is allowed, and `n` is 1."""
    if not keeps_text:
        raise BadRequest('X-Condenser-History: append needs store.content = "full".', param=controls.param("history"))
    if session is None:
        raise BadRequest("X-Condenser-History: append needs X-Condenser-Session.", param="X-Condenser-Session")
    if controls.no_store:
        raise BadRequest(
            "X-Condenser-History: append cannot be combined with X-Condenser-No-Store.",
            param=controls.param("no-store"),
        )
    if not body.endpoint.has_one_choice(body.values):
        raise BadRequest("X-Condenser-History: append supports n = 1 only.", param="n")


class KeptReplies:
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
    return blake2b(reply_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"reply").hexdigest()


def reply_block(goes_on: GoesOn, body: Body, session: str, reply_id: str, reply: Items) -> Mapping[str, bytes]:
    """The block that stores the reply to a request in a session, by its name; empty for a reply without an id."""
    if not (reply and reply_id):
        return {}
    is_here = goes_on.session == session
    base, start = (goes_on.name, goes_on.supplied) if is_here else ("", 0)
    _, data = Append(Tip("", base), tuple(body.elements[start:]), "").block(reply)
    return {block_name(reply_id): data}
