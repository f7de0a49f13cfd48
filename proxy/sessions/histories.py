"""The blocks that store a session's history, one for each turn, and a cache of the decoded blocks.

A block holds the messages that a request added to its branch: their digests and their text. Its name is the chain
digest that it ends with, and it names the chain digest that it continues. So the blocks of a session form a tree, and
from any node the path leads back to the root. A block of append mode holds one append instead, and names the block
before it.

Blocks never change, so a decoded block serves all later turns. A turn reads by name the blocks that are not cached,
usually only the newest one. It reads all blocks of the session only if reading by name does not lead back to the
beginning. When the cached sessions together exceed a number of bytes, the least recently used one is dropped.

If a session is deleted and created again, its `created_at` changes, and nothing cached of the old one is used.

In append mode the client sends only its new messages, and the proxy puts the stored ones before them. Each append
stores one block: the messages that the client sent and the reply, linked to the block before. The session names its
newest block. A head, `<count>-<digest>`, is the length and the chain digest of the history up to the last message that
the client sent; the reply is stored under that head. A client guards an append with `If-Head`, which must name the
newest head. If it names the head before that, and its messages lead to the newest one, the client repeats the append
that was stored last, and replaces it together with its reply. Messages and reply are stored together or not at all.

`KeptReplies` takes over the histories that a server would keep. Such a server lets a client name the newest reply and
send only what is new. So the proxy stores each such reply in a block of its own: what the client sent for it, the
reply, and the name of the block of the previous reply. A digest of the reply's id names the block, and the chain index
leads from there to the session that has it. Such a conversation is stored from its first request, which holds no
message of a model: a client that sends what a model said keeps its history itself. If a session forks from the one that
has the history, its first block repeats all of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakValueDictionary

from proxy.controls import Controls
from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.replies import Items
from proxy.endpoints.table import endpoint_named
from proxy.errors import BadRequest, HeadMismatch
from proxy.request.message_cache import Element
from proxy.request.wire import Body, Continuation
from proxy.runtime.lru import Lru
from proxy.sessions.codec import BLOCK_VERSION, StoredMessage, block_document, messages_of
from proxy.sessions.session import CHAT, EMPTY, Branch, Session, Tip
from proxy.sessions.stored import SessionLookup, StoredSessions
from proxy.store.access import T, decompress
from proxy.store.base import StoreError, StoreKey
from strategies.core.alignment import Tree
from strategies.core.digest import DIGEST_BYTES, ROOT, chain
from strategies.core.messages import Message, Reader, dump
from strategies.core.parsing import loads

MAX_BYTES = 32 * 1024 * 1024
IN_THREAD = 16 * 1024  # bytes of blocks as stored; more are decoded in a thread
READS_BY_NAME = 4  # each goes one block further back; then all of the session is read

# The memory that one message takes, roughly: its nodes; its text, once as it is stored and once as it was parsed.
_NODE_BYTES = 500
_TEXT_BYTES = 500
_COPIES = 2


class StoredAppend(NamedTuple):
    """One append as it was stored: the tip it builds on, and its messages with the reply as the last of them."""

    base: Tip
    elements: tuple[Element, ...]


def decode_append(document: Mapping[str, Any], endpoint: Endpoint) -> StoredAppend | None:
    """The append in a block's document; None for a block of a client that sends its whole history each time."""
    if "before" not in document:
        return None
    elements = tuple(Element.of(raw, endpoint) for raw in document["messages"])
    return StoredAppend(Tip(*document["before"]), elements)


def history_at(tip: Tip, blocks: Mapping[str, StoredAppend]) -> History:
    """The history that ends at `tip`; raises `KeyError` if a block is missing."""
    appends: list[StoredAppend] = []
    at = tip
    while at.block:
        appends.append(blocks[at.block])
        at = appends[-1].base
    if not appends:
        return History()
    newest, *older = appends
    before = tuple([element for append in reversed(older) for element in append.elements])
    return History(tip, (*before, *newest.elements), newest.base, before)


class History(NamedTuple):
    """An appended history up to its newest reply, and the same history before its newest append."""

    tip: Tip = Tip()
    elements: tuple[Element, ...] = ()
    tip_before: Tip = Tip()
    elements_before: tuple[Element, ...] = ()


class DecodedBlock(NamedTuple):
    name: str
    messages: list[StoredMessage]
    appended: StoredAppend | None


class StoredHistory:
    """The decoded blocks of one session: a tree of messages, and appends by the names of their blocks.

    `size` is roughly the memory that it takes, in bytes; dialect and `created_at` are those of the session.
    """

    def __init__(self, dialect: str = CHAT, created_at: float = 0.0) -> None:
        self.endpoint = endpoint_named(dialect)
        self.created_at = created_at
        self.tree: Tree[StoredMessage] = Tree()
        self.appended: dict[str, StoredAppend] = {}
        self.size = 0
        # Names of blocks that known blocks continue, and of blocks that the store does not have.
        self._needed: set[str] = set()
        self._gone: set[str] = set()
        self._parsed: dict[StoredMessage, Message] = {}
        self._counter_key = ""

    @classmethod
    def of(cls, blocks: Mapping[str, bytes], dialect: str = CHAT) -> StoredHistory:
        """The history in all blocks of a session; raises ValueError, LookupError or TypeError for a broken block."""
        history = cls(dialect)
        history.add(decode_blocks(blocks, history.endpoint))
        return history

    def add(self, blocks: Iterable[DecodedBlock]) -> None:
        """Adds blocks; known ones change nothing."""
        for name, messages, appended in blocks:
            if appended is not None and name not in self.appended:
                self.appended[name] = appended
                self.size += sum(_NODE_BYTES + _text_bytes(element.data) for element in appended.elements)
                self._needed.discard(name)
                if appended.base.block and appended.base.block not in self.appended:
                    self._needed.add(appended.base.block)
            if messages and messages[0].before != ROOT and messages[0].before not in self.tree.messages:
                self._needed.add(messages[0].before.hex())
            for message in messages:
                self._needed.discard(self.tree.add(message).hex())
                self.size += _NODE_BYTES + _text_bytes(message.raw)

    def missing(self, ends: Collection[str]) -> set[str]:
        """Names of the unknown blocks that the paths to `ends` need, except those that are gone."""
        unknown = {end for end in ends if end not in self.appended and bytes.fromhex(end) not in self.tree.messages}
        return (unknown | self._needed) - self._gone

    def note_all_read(self, ends: Collection[str]) -> None:
        """Notes that all blocks were read: those still missing are gone, because blocks are stored with a session."""
        self._gone |= self.missing(ends)

    def parsed(self, counter_key: str) -> dict[StoredMessage, Message]:
        """A cache of parsed messages with the counts of one counter, which the restorer fills."""
        if counter_key != self._counter_key:
            self._parsed, self._counter_key = {}, counter_key
        return self._parsed


def messages_on(session: Session, branch: Branch | None, stored: StoredHistory, reader: Reader) -> Iterator[Message]:
    """The messages of a branch, without counts; for an appended history, which has no branches, all of it."""
    if branch is not None and not session.tip.block:
        dialect = stored.endpoint.dialect
        for message in stored.tree.line(branch.head):
            yield reader.read(message.raw, loads(message.raw), 0, dialect, message.digest)
    for element in history_at(session.tip, stored.appended).elements:
        yield reader.read(element.raw, element.value, 0, element.endpoint.dialect)


def decode_blocks(blocks: Mapping[str, bytes], endpoint: Endpoint) -> list[DecodedBlock]:
    """Decodes blocks, which are given by name; raises ValueError, LookupError or TypeError for a broken block."""
    documents = ((name, block_document(decompress(data))) for name, data in blocks.items())
    return [DecodedBlock(name, messages_of(one), decode_append(one, endpoint)) for name, one in documents]


async def read_in_thread(read: Callable[..., T], *arguments: object) -> T:
    """Runs what decodes blocks in a thread; raises `StoreError` if a block cannot be read."""
    try:
        return await asyncio.to_thread(read, *arguments)
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError("store-corrupt", f"a block cannot be read: {type(error).__name__}") from None


def _text_bytes(raw: str | bytes) -> int:
    return _TEXT_BYTES + _COPIES * len(raw)


class Histories:
    """Reads the histories of sessions, and caches at most `max_bytes` of them."""

    def __init__(self, stored: StoredSessions, max_bytes: int = MAX_BYTES) -> None:
        self._stored = stored
        self._max_bytes = max_bytes
        self._cached: Lru[StoreKey, StoredHistory] = Lru(max_bytes)

    async def history(self, key: StoreKey, session: Session, ends: Collection[str]) -> StoredHistory:
        """The history of a session with its paths to `ends`, as far as they are stored; raises `StoreError`.

        `ends` are chain digests in hex, or names of append mode's blocks.
        """
        history, tries = self._cached.use(key), READS_BY_NAME
        if history is None or history.created_at != session.created_at:
            history, tries = StoredHistory(session.dialect, session.created_at), 0
        await self._read_missing(key, history, ends, tries)
        if history.size <= self._max_bytes:
            self._cached.put(key, history, history.size)
        else:
            self.forget(key)
        return history

    def forget(self, key: StoreKey) -> None:
        self._cached.forget(key)

    async def _read_missing(self, key: StoreKey, history: StoredHistory, ends: Collection[str], tries: int) -> None:
        """Reads the blocks that the paths to `ends` lack, at most `tries` times by name, else all blocks."""
        for _ in range(tries):
            missing = history.missing(ends)
            if not missing:
                return
            if not await self._read(key, history, sorted(missing)):
                break
        await self._read(key, history, None)
        history.note_all_read(ends)

    async def _read(self, key: StoreKey, history: StoredHistory, names: list[str] | None) -> int:
        """Reads the blocks with these names, or all blocks if `names` is None. Returns how many were found."""
        blocks = await self._stored.store.blocks(key, names)
        try:
            if sum(map(len, blocks.values())) < IN_THREAD:
                decoded = decode_blocks(blocks, history.endpoint)
            else:
                decoded = await asyncio.to_thread(decode_blocks, blocks, history.endpoint)
            history.add(decoded)
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a block cannot be read: {type(error).__name__}") from error
        return len(blocks)


class MissingMessages(NamedTuple):
    """The messages that a client left out, whether it kept the first one, and the stored history that has them."""

    messages: tuple[StoredMessage, ...]
    kept_first: bool
    history: StoredHistory


class Append(NamedTuple):
    """One append that is not stored yet: the tip it builds on, the messages that the client sent, and its head.

    `current_head` is the newest stored head, which stays valid until the append is stored.
    """

    base: Tip
    sent: tuple[Element, ...]
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


def head_after(elements: Sequence[Element]) -> str:
    """The head of a history with these messages, as headers show it."""
    digests = chain(element.digest for element in elements if element.role not in element.endpoint.dialect.system_roles)
    return f"{len(digests)}-{digests[-1].hex()}" if digests else EMPTY


def append_to(stored: History, sent: Sequence[Element], if_head: str | None) -> tuple[Append, tuple[Element, ...]]:
    """The append of the `sent` messages to a stored history, and the whole history with them.

    Raises `HeadMismatch` with the newest head if `if_head` names another one, unless this repeats the append that led
    to the newest head.
    """
    base, before = stored.tip, stored.elements
    if if_head is not None and if_head != base.head:
        base, before = stored.tip_before, stored.elements_before
        if if_head != base.head or head_after((*before, *sent)) != stored.tip.head:
            raise HeadMismatch(stored.tip.head, if_head)
    history = (*before, *sent)
    return Append(base, tuple(sent), head_after(history), stored.tip.head), history


def check_append(controls: Controls, body: Body, session: str | None) -> None:
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


class KeptReplies:
    def __init__(self, stored: StoredSessions) -> None:
        self._stored = stored
        self._histories = Histories(stored)

    async def supplied(self, tenant: str, body: Body) -> tuple[Body, Continuation | None]:
        """The body of a request with the history that it names, and what it continues.

        The body is unchanged if that history is not known. None if the reply is not to be stored either.
        """
        named = body.values.get(body.endpoint.previous_reply)
        if named is None:
            return body, Continuation() if body.endpoint.is_kept(body.values) else None
        if not isinstance(named, str):
            return body, None
        try:
            return await self._stored.patience().read(self._supplied(tenant, named, body))
        except StoreError as error:
            self._stored.outage.failed("a stored reply was not read", error)
            return body, None

    async def _supplied(self, tenant: str, reply_id: str, body: Body) -> tuple[Body, Continuation | None]:
        name, lookup = block_name(reply_id), SessionLookup(self._stored, tenant)
        found = await lookup.names([name, collided(name)])
        key = StoreKey(tenant, "" if collided(name) in found else found.get(name, ""))
        session = await lookup.session(key.name) if key.name else None
        if session is None or session.dialect != body.endpoint.dialect.name:
            return body, None
        history = await self._histories.history(key, session, [name])
        try:
            before = history_at(Tip("", name), history.appended).elements
        except KeyError:
            return body, None
        return body.with_history((*before, *body.elements)), Continuation(name, key.name, len(before))


def block_name(reply_id: str) -> str:
    return blake2b(reply_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"reply").hexdigest()


def collided(name: str) -> str:
    """The name that the index has if two replies with different histories had one id, which then names neither."""
    return blake2b(name.encode(), digest_size=DIGEST_BYTES, person=b"collided").hexdigest()


def history_of(block: bytes) -> tuple[str, str]:
    """What tells the history of a reply from others: the head before the reply, and the reply's last item."""
    document = block_document(decompress(block))
    return document["before"][0], document["messages"][-1]


def reply_block(
    continuation: Continuation, body: Body, session: str, reply_id: str, reply: Items
) -> Mapping[str, bytes]:
    """The block that stores the reply to a request in a session, by its name; empty for a reply without an id."""
    if not (reply and reply_id):
        return {}
    is_here = continuation.session == session
    base, start = (continuation.name, continuation.supplied) if is_here else ("", 0)
    # The head of all that was sent, by which another reply with this id is told from the same one.
    _, data = Append(Tip(head_after(body.elements), base), tuple(body.elements[start:]), "").block(reply)
    return {block_name(reply_id): data}


_ENDED = 0.001  # seconds: a claim that is renewed for so long has ended


@dataclass(frozen=True, slots=True)
class Appends:
    """Turns of append mode: one append to a history at a time, so that no reply is paid for that cannot be stored.

    In a process the next append waits, and then reads the history that the one before it has stored. Between replicas a
    claim decides: the loser is told the newest head. A replica that dies loses its claims after `ttl` seconds.
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
