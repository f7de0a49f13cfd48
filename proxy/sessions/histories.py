"""The blocks that a session's history is stored in, one for each turn, and a cache of the decoded ones.

A block holds the messages that a request added to its branch: their digests, and their text unless only digests may be
kept. Its name is the chain digest that it ends with, and it holds the chain digest that it goes on from. So the blocks
of a session form a tree, and the path to any node can be walked back to the root. A block has a schema version; a block
without one is older than the versions. A block of a newer version is a miss.

Blocks never change, so a block that was decoded once serves every later turn. A turn reads by name the blocks that are
not cached, usually the newest one only; it reads all blocks of the session only where reading by name does not lead
back to the beginning. When the cached sessions exceed a number of bytes together, the least recently used one is
dropped.

A session that was deleted and created again has another `created_at`, and nothing cached of the old one is used.

`KeptReplies` takes histories over. A server that keeps its replies lets a client name the newest one and send only what
is new. So the proxy stores each such reply in a block of its own: what the client sent for it, the reply, and the name
of the block of the reply before. The block is named by a digest of the reply's id, and the chain index leads from there
to the session that has it. Such a conversation is stored from its first request on, in which no model has said
anything; a client that sends what a model said keeps its history itself. In a session that forks from the one that has
the history, the first block repeats all of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.replies import Items
from proxy.endpoints.table import endpoint_named
from proxy.request.client_request import GoesOn
from proxy.request.wire import Body
from proxy.runtime.lru import SizedLru
from proxy.sessions.append import VERSION, Append, StoredAppend, decode_append, history_at
from proxy.sessions.branch import Branch
from proxy.sessions.identity import CHAT
from proxy.sessions.session import Session, Tip
from proxy.sessions.stored import StoredSessions
from proxy.store.access import decompress
from proxy.store.base import StoreError, StoreKey
from strategies.core.alignment import Tree
from strategies.core.digest import DIGEST_BYTES, ROOT, link
from strategies.core.messages import Message, Reader, Role, unknown
from strategies.core.parsing import loads
from strategies.core.transcript import Transcript

MAX_BYTES = 32 * 1024 * 1024
IN_THREAD = 16 * 1024  # bytes of blocks as stored; from here on they are decoded in a thread
READS_BY_NAME = 4  # each goes one block further back; then all of the session is read

# The memory that one message takes, roughly: its nodes; its text, once as it is stored and once as it was parsed.
_NODE_BYTES = 500
_TEXT_BYTES = 500
_COPIES = 2


class StoredMessage(NamedTuple):
    """A stored message: the chain digest before it, its own digest, and its text where that was kept."""

    before: bytes
    digest: bytes
    raw: str | None


def new_block(transcript: Transcript, start: int, end: int | None = None, *, keeps_text: bool) -> dict[str, bytes]:
    """The block of the chain messages from `start` to `end`, by its name; empty where there are no such messages."""
    messages = transcript.chain[start:end]
    if not messages:
        return {}
    document = {
        "v": VERSION,
        "from": (transcript.digests[start - 1] if start else ROOT).hex(),
        "digests": [message.digest.hex() for message in messages],
        "messages": [message.raw for message in messages] if keeps_text else None,
    }
    return {transcript.digests[start + len(messages) - 1].hex(): json.dumps(document).encode()}


def block_document(data: bytes) -> dict[str, Any]:
    """The document of a stored block; empty where a newer version wrote it. Raises ValueError for what is no block."""
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("a block is no object")  # noqa: TRY004
    return document if document.get("v", VERSION) <= VERSION else {}


def messages_of(document: Mapping[str, Any]) -> list[StoredMessage]:
    """The messages in a block's document, in order; none in a block of append mode."""
    if "digests" not in document:
        return []
    digests: Sequence[str] = document["digests"]
    texts: Sequence[str | None] = document["messages"] or [None] * len(digests)
    node = bytes.fromhex(document["from"])
    messages: list[StoredMessage] = []
    for digest, raw in zip(map(bytes.fromhex, digests), texts, strict=True):
        messages.append(StoredMessage(node, digest, raw))
        node = link(node, digest)
    return messages


class DecodedBlock(NamedTuple):
    """One block, decoded: the messages of a turn, or an append."""

    name: str
    messages: list[StoredMessage]
    appended: StoredAppend | None


class StoredHistory:
    """The decoded blocks of one session: a tree of messages, and appends by the names of their blocks.

    `size` is the memory that it takes, in bytes, roughly; `dialect` is that of the session.
    """

    def __init__(self, dialect: str = CHAT) -> None:
        self.endpoint = endpoint_named(dialect)
        self.tree: Tree[StoredMessage] = Tree()
        self.appended: dict[str, StoredAppend] = {}
        self.size = 0
        # Names of blocks that known ones go on from, and of those that the store does not have.
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
        """Adds blocks; those that are known already change nothing."""
        for block in blocks:
            if block.appended is not None and block.name not in self.appended:
                self._append(block.name, block.appended)
            if block.messages:
                self._grow(block.messages)

    def _append(self, name: str, appended: StoredAppend) -> None:
        self.appended[name] = appended
        self.size += sum(_NODE_BYTES + _text_bytes(element.data) for element in appended.elements)
        self._needed.discard(name)
        if appended.base.block and appended.base.block not in self.appended:
            self._needed.add(appended.base.block)

    def _grow(self, messages: list[StoredMessage]) -> None:
        before = messages[0].before
        if before != ROOT and before not in self.tree.messages:
            self._needed.add(before.hex())
        for message in messages:
            self._needed.discard(self.tree.add(message).hex())
            self.size += _NODE_BYTES + _text_bytes(message.raw)

    def missing(self, ends: Collection[str]) -> set[str]:
        """Names of blocks that the paths to `ends` need and that are not known, except those that are gone."""
        unknown = {end for end in ends if end not in self.appended and bytes.fromhex(end) not in self.tree.messages}
        return (unknown | self._needed) - self._gone

    def note_all_read(self, ends: Collection[str]) -> None:
        """Notes that all blocks were read: those still missing are gone, since a block is stored with its session."""
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
        for each in stored.tree.line(branch.head):
            if each.raw is None:
                yield unknown(each.digest, Role.USER, dialect)
            else:
                yield reader.read(each.raw, loads(each.raw), 0, dialect, each.digest)
    for element in history_at(session.tip, stored.appended).elements:
        yield reader.read(element.raw, element.value, 0, element.endpoint.dialect)


def decode_blocks(blocks: Mapping[str, bytes], endpoint: Endpoint) -> list[DecodedBlock]:
    """Decodes blocks, which are given by name; raises ValueError, LookupError or TypeError for a broken block."""
    documents = ((name, block_document(decompress(data))) for name, data in blocks.items())
    return [DecodedBlock(name, messages_of(each), decode_append(each, endpoint)) for name, each in documents]


def _text_bytes(raw: str | bytes | None) -> int:
    return 0 if raw is None else _TEXT_BYTES + _COPIES * len(raw)


class _Cached(NamedTuple):
    """The history of a session, and when that session was created."""

    created_at: float
    history: StoredHistory


class Histories:
    """Reads the histories of sessions; one per app. It caches at most `max_bytes` of them."""

    def __init__(self, stored: StoredSessions, max_bytes: int = MAX_BYTES) -> None:
        self._stored = stored
        self._max_bytes = max_bytes
        self._cached: SizedLru[StoreKey, _Cached] = SizedLru(max_bytes)

    async def history(self, key: StoreKey, session: Session, ends: Collection[str]) -> StoredHistory:
        """The history of a session with its paths to `ends`, as far as they are stored; raises `StoreError`.

        `ends` are chain digests in hex, or names of append mode's blocks.
        """
        cached = self._cached.use(key)
        if cached is not None and cached.created_at == session.created_at:
            history = cached.history
            await self._read_missing(key, history, ends, READS_BY_NAME)
        else:
            history = StoredHistory(session.dialect)
            await self._read_missing(key, history, ends, 0)
        if history.size <= self._max_bytes:
            self._cached.put(key, _Cached(session.created_at, history), history.size)
        else:
            self.forget(key)
        return history

    def forget(self, key: StoreKey) -> None:
        """Drops a session that is gone from the cache."""
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
        """Reads the blocks of these names, all of them where that is None. Returns how many there were."""
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
