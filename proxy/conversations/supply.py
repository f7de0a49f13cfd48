"""Supplies the messages of a conversation that its client did not send. Two kinds of clients leave them to the store.

    append mode    the client names a session, and sends what comes next
    trimming       it sends the newest part of its history, with the first message or without

What is supplied becomes part of the request's list of messages (`Body.with_supplied`). From then on nothing tells it
from what was sent: it is read, cached and counted in the same way. What only the upstream has cannot be supplied: such
a request passes as it came (`proxy/turn/reading.py`).

Append mode. Each append stores one block: the messages that the client sent and the reply, linked to the block before.
The session names its newest block. A head, `<count>-<digest>`, is the length and the chain digest of the history up to
the last message that the client sent; the reply is stored under that head. A client guards an append with `If-Head`,
which must name the newest head. If it names the head before that, and its messages lead to the newest one, the client
repeats the append that was stored last, and replaces it together with its reply. Messages and reply are stored together
or not at all.

Trimming. The stored messages form a tree, in which the sent ones are looked for (`strategies/core/alignment.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from proxy.bodies.message_cache import Element, MessageCache
from proxy.bodies.wire import Body, ClientRequest
from proxy.callers.tenants import ALWAYS, Trust
from proxy.controls import Controls
from proxy.conversations.codec import BLOCK_VERSION, StoredMessage
from proxy.conversations.histories import IN_THREAD, Grow, Histories, History, history_at
from proxy.conversations.recognition import Identity, Recognised
from proxy.conversations.session import EMPTY, Branch, Session, Tip, has_node
from proxy.conversations.stored import StoredSessions
from proxy.errors import (
    BadRequest,
    BodyTooLarge,
    CredentialUnproven,
    HeadMismatch,
    HistoryIncomplete,
    HistoryUnavailable,
)
from proxy.protocols.replies import Items
from proxy.store.access import Patience
from proxy.store.base import StoreError, StoreKey
from proxy.tokens.counter import Counter
from strategies.core.alignment import MIN_RUN, align
from strategies.core.messages import Role, chain, dump
from strategies.core.transcript import Transcript

if TYPE_CHECKING:
    from proxy.bodies.measure import Measured, Measurer


class Append(NamedTuple):
    """One append that is not stored yet: the tip it builds on, the messages that the client sent, and its head.

    `current_head` is the newest stored head, which stays valid until the append is stored.
    """

    base: Tip
    sent: Sequence[Element]
    head: str
    current_head: str = EMPTY

    def block(self, reply: Items) -> tuple[Tip, bytes]:
        """The tip of the history after this append, and the block that stores the append with its reply."""
        document = {
            "v": BLOCK_VERSION,
            "before": [self.base.head, self.base.block],
            "messages": [*(element.raw for element in self.sent), *map(dump, reply)],
        }
        data = json.dumps(document).encode()
        return Tip(self.head, blake2b(data, digest_size=16).hexdigest()), data


class Supplier:
    """Supplies stored messages; one per app.

    `silence` is the longest that an upstream may be silent, in seconds; a request has at most `most` bytes with what is
    supplied.
    """

    def __init__(
        self, stored: StoredSessions, cache: MessageCache, measurer: Measurer, silence: float, most: int
    ) -> None:
        self._stored = stored
        self._histories = Histories(stored)
        self._cache = cache
        self._measurer = measurer
        self._turns = AppendTurns(stored, silence)
        self._most = most

    # -- append mode ---------------------------------------------------------------------------------

    async def appended(
        self, request: ClientRequest, identity: Identity, patience: Patience
    ) -> tuple[ClientRequest, Append]:
        """A request of append mode with the history that it continues.

        Raises `HeadMismatch`, `HistoryIncomplete`, `HistoryUnavailable`, `BadRequest`, `BodyTooLarge` and `Overloaded`.
        """
        _check_append(request.controls, request.body, identity.id)
        has_turn = True
        try:
            writes = not request.controls.dry_run
            if writes and request.until_answered is not None:
                turn = self._turns.turn(StoreKey(request.tenant, identity.key), claims=request.trust.accepted)
                has_turn = await request.until_answered.enter_async_context(turn)
                await request.trust.look_up(patience)  # the upstream may have accepted the append before this one
            grow, named = partial(self._grow, request), (request.tenant, identity, patience)
            stored = await self.history(*named, grow, writes=writes, trust=request.trust)
            if stored.tip.block:
                await request.prove()  # the history goes to the upstream, and its head to the client
        except StoreError as error:
            raise HistoryUnavailable(f"The stored history cannot be continued now ({error.reason}).") from None
        if not has_turn:
            raise HeadMismatch(stored.tip.head)
        base, before = _base_of(stored, request.body.elements, request.controls.if_head)
        body = request.body.with_supplied(before)
        await grow(body.size)
        append = Append(base, request.body.elements, head_after(body.elements), stored.tip.head)
        return request._replace(body=body), append

    async def history(
        self,
        tenant: str,
        identity: Identity,
        patience: Patience,
        grow: Grow,
        *,
        writes: bool = False,
        trust: Trust = ALWAYS,
    ) -> History:
        """The history that append mode has stored under an explicit id.

        Raises `HistoryIncomplete` and `StoreError`; with `writes`, this also if nothing can be stored now, or is not
        kept. Raises `CredentialUnproven` for one that may not be shown.
        """
        try:
            return await patience.read(self._history(StoreKey(tenant, identity.key), trust, grow, writes=writes))
        except StoreError as error:
            self._stored.outage.failed("a history was not read", error)
            raise

    async def _history(self, key: StoreKey, trust: Trust, grow: Grow, *, writes: bool) -> History:
        if writes and (failure := await self._stored.why_unreliable()):
            raise StoreError(failure)
        session = await self._stored.load(key)
        if session is None:
            self._histories.forget(key)
            if await self._stored.store.blocks(key):
                raise HistoryIncomplete  # what led to them is gone
        if session is None or not session.tip.block:
            return History()
        if not await trust.shows(session.traits, self._stored.patience()):
            raise CredentialUnproven
        stored = await self._histories.history(key, session, [session.tip.block], grow)
        try:
            return history_at(session.tip, stored.appended)
        except KeyError:
            raise HistoryIncomplete from None

    # -- trimming ------------------------------------------------------------------------------------

    async def completed(
        self, asked: ClientRequest, found: Recognised, sent: Measured, counter: Counter
    ) -> tuple[ClientRequest, Recognised, Measured, Measured]:
        """A request with the messages that its client has left out, and what is known then: its lists, sent and whole.

        If they cannot be read, the request continues as it came; without a branch nothing else is known of it, so it
        continues as if nothing were stored. If none are missing, both lists are the one that was `sent`.
        """
        whole = None
        try:
            whole = await self._whole(asked, found, sent.transcript)
        except BodyTooLarge:
            pass
        except StoreError as error:
            self._stored.outage.failed("a history was not aligned", error)
            found = found if found.branch else found.without_store(error.reason)
        if whole is None:
            return asked, found, sent, sent
        part, full = [await self._measurer.measure(body, counter) for body in (asked.body, whole)]
        return asked._replace(body=whole), found.continued_by(full.transcript), part, full

    async def _whole(self, asked: ClientRequest, found: Recognised, transcript: Transcript) -> Body | None:
        """The body with the messages that its client has left out; None if none are missing, or it is not known which.

        `transcript` is that of the body. Raises `BodyTooLarge`, `Overloaded` and `StoreError`.
        """
        body, session = asked.body, found.session
        if asked.controls.append:
            return None  # it names the history that it continues
        if session is None and not found.failure:
            self._histories.forget(found.key)
        if session is None or found.identity.id is None or len(transcript.chain) < MIN_RUN:
            return None
        if not _may_be_newest_part(session, found.branch, transcript):
            return None
        heads = {branch.head for branch in session.branches}
        names, grow = [head.hex() for head in heads], partial(self._grow, asked)
        history = await found.patience.read(self._histories.history(found.key, session, names, grow))
        sent = [message.digest for message in transcript.chain]
        alignment = align(history.tree, heads, sent, [each.role is Role.ASSISTANT for each in transcript.chain])
        if alignment is None:
            return None
        missing = history.tree.line(alignment.before)[alignment.kept_first :]
        if not missing:
            return None
        await grow(body.size + sum(len(message.raw) for message in missing))
        elements = await self._elements(missing, body)
        systems = body.endpoint.dialect.system_roles
        chained = (at for at, element in enumerate(body.elements) if element.role not in systems)
        return body.with_supplied(elements, next(islice(chained, int(alignment.kept_first), None)))

    async def _grow(self, request: ClientRequest, size: int) -> None:
        """Lets a request grow to so many bytes; raises `BodyTooLarge` and `Overloaded`."""
        if request.place is not None:
            await request.place.grow(size, self._most)

    async def _elements(self, missing: Sequence[StoredMessage], body: Body) -> list[Element]:
        """Stored messages as elements: those of the cache where it has them, so that their counts are known."""
        owner, endpoint = body.elements[0].owner, body.endpoint
        cached = [self._cache.element(message.raw, owner) for message in missing]
        new = [message.raw for message, element in zip(missing, cached, strict=True) if element is None]

        def read() -> list[Element]:
            return [Element.of(raw, endpoint, owner) for raw in new]

        elements = iter(await asyncio.to_thread(read) if sum(map(len, new)) >= IN_THREAD else read())
        return [element or next(elements) for element in cached]


def _may_be_newest_part(session: Session, branch: Branch | None, transcript: Transcript) -> bool:
    """Whether a transcript may be the newest part of a stored branch: it continues no branch from its beginning.

    It may also be one if it continues `branch` with the last message rewritten and the session has other branches: that
    branch may itself have begun in the middle of another.
    """
    if branch is None:
        return bool(session.branches)
    if not branch.length:  # restarted
        return False
    return len(session.branches) > 1 and not has_node(transcript.digests, branch.length, branch.head)


def _check_append(controls: Controls, body: Body, session: str | None) -> None:
    """Raises `BadRequest` unless the session is named, storing is allowed, and `n` is 1."""
    if session is None:
        raise BadRequest("X-Condenser-History: append needs X-Condenser-Session.", param="X-Condenser-Session")
    if controls.no_store:
        raise BadRequest(
            "X-Condenser-History: append cannot be combined with X-Condenser-No-Store.",
            param=controls.param("no-store"),
        )
    if not body.endpoint.has_one_choice(body.values):
        raise BadRequest("X-Condenser-History: append supports n = 1 only.", param="n")


def _base_of(stored: History, sent: Sequence[Element], if_head: str | None) -> tuple[Tip, tuple[Element, ...]]:
    """The tip that an append of the `sent` messages builds on, and the history up to it.

    Raises `HeadMismatch` with the newest head if `if_head` names another one, unless this repeats the append that led
    to the newest head.
    """
    if if_head is None or if_head == stored.tip.head:
        return stored.tip, stored.elements
    before = stored.elements_before
    if if_head != stored.tip_before.head or head_after((*before, *sent)) != stored.tip.head:
        raise HeadMismatch(stored.tip.head, if_head)
    return stored.tip_before, before


def head_after(elements: Sequence[Element]) -> str:
    """The head of a history with these messages, as headers show it."""
    digests = chain(element.digest for element in elements if element.role not in element.endpoint.dialect.system_roles)
    return f"{len(digests)}-{digests[-1].hex()}" if digests else EMPTY


_ENDED = 0.001  # seconds: a claim that is renewed for so long has ended


@dataclass(frozen=True, slots=True)
class AppendTurns:
    """Turns of append mode: one append to a history at a time, so that no reply is paid for that cannot be stored.

    In a process the next append waits, and then reads the history that the one before it has stored. Between replicas a
    claim decides: the loser gets the newest head. A replica that dies loses its claims after `ttl` seconds.
    Correctness does not depend on claims: an append that another one overtakes all the same is not stored, and says so.

    These are the turns of one replica. `ttl` is the longest that an upstream may be silent, in seconds.
    """

    _stored: StoredSessions
    ttl: float
    _holder: str = field(default_factory=lambda: uuid4().hex)
    _locks: WeakValueDictionary[StoreKey, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @asynccontextmanager
    async def turn(self, key: StoreKey, *, claims: bool) -> AsyncIterator[bool]:
        """A turn for the history of a session; false if another replica has it. Raises `StoreError`."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            has_claim = not claims or await self._claim(key, self.ttl)
            try:
                yield has_claim
            finally:
                if claims and has_claim:
                    with suppress(StoreError):
                        await self._claim(key, _ENDED)

    async def _claim(self, key: StoreKey, ttl: float) -> bool:
        claiming = self._stored.store.claim(key.tenant, f"append-{key.name}", self._holder, ttl)
        return await self._stored.write(claiming, self._stored.patience())
