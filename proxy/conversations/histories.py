"""The blocks that store a session's history, one for each turn, and a cache of the decoded blocks.

A block holds the messages that a request added to its branch: their digests and their text. Its name is the chain
digest that it ends with, and it names the chain digest that it continues. So the blocks of a session form a tree, and
from any node the path leads back to the root. A block of append mode holds one append instead, and names the block
before it.

Blocks never change, so a decoded block serves all later turns. A turn reads by name the blocks that are not cached,
usually only the newest one. It reads all blocks of the session only if reading by name does not lead back to the
beginning. When the cached sessions together exceed a number of bytes, the least recently used one is dropped.

If a session is deleted and created again, its `created_at` changes, and nothing cached of the old one is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from proxy.bodies.message_cache import Element
from proxy.conversations.codec import StoredMessage, block_document, messages_of
from proxy.conversations.session import CHAT, Branch, Session, Tip
from proxy.conversations.stored import StoredSessions
from proxy.protocols import endpoint_named
from proxy.protocols.endpoint import Endpoint
from proxy.runtime.lru import Lru
from proxy.store.access import T, decompress, plain_size
from proxy.store.base import StoreError, StoreKey
from strategies.core.alignment import Tree
from strategies.core.messages import ROOT, Message, Reader
from strategies.core.parsing import loads

MAX_BYTES = 32 * 1024 * 1024
MOST_PLAIN = 256 * 1024 * 1024  # bytes of blocks that are unpacked at once, for whomever
IN_THREAD, PLAIN_IN_THREAD = 16 * 1024, 256 * 1024
"""Bytes of blocks, as stored and unpacked, from which on they are decoded in a thread."""
Grow = Callable[[int], Awaitable[None]]
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


def lines_on(
    session: Session, branch: Branch | None, stored: StoredHistory, reader: Reader
) -> Iterator[Iterator[Message]]:
    """The messages of a branch as `messages_on` gives them, after those that it had before each compaction."""
    for head in session.heads_of(branch)[:-1] if branch is not None and not session.tip.block else ():
        yield _messages_to(head, stored, reader)
    yield messages_on(session, branch, stored, reader)


def _messages_to(head: bytes, stored: StoredHistory, reader: Reader) -> Iterator[Message]:
    for message in stored.tree.line(head):
        yield reader.read(message.raw, loads(message.raw), 0, stored.endpoint.dialect, message.digest)


def messages_on(session: Session, branch: Branch | None, stored: StoredHistory, reader: Reader) -> Iterator[Message]:
    """The messages of a branch, without counts; for an appended history, which has no branches, all of it."""
    if branch is not None and not session.tip.block:
        yield from _messages_to(branch.head, stored, reader)
    for element in history_at(session.tip, stored.appended).elements:
        yield reader.read(element.raw, element.value, 0, element.endpoint.dialect)


def decode_blocks(blocks: Mapping[str, bytes], endpoint: Endpoint) -> list[DecodedBlock]:
    """Decodes blocks, which are given by name; raises ValueError, LookupError or TypeError for a broken block.

    Raises `StoreError` if they are more than may be unpacked at once, before any is.
    """
    if (size := sum(map(plain_size, blocks.values()))) > MOST_PLAIN:
        raise StoreError("store-quota", f"the history has {size:,} bytes, more than can be read")
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

    async def history(self, key: StoreKey, session: Session, ends: Collection[str], grow: Grow) -> StoredHistory:
        """The history of a session with its paths to `ends`, as far as they are stored; raises `StoreError`.

        `ends` are chain digests in hex, or names of append mode's blocks. `grow` is asked with the bytes of blocks
        before they are unpacked, and raises what it does.
        """
        history, tries = self._cached.use(key), READS_BY_NAME
        if history is None or history.created_at != session.created_at:
            history, tries = StoredHistory(session.dialect, session.created_at), 0
        await self._read_missing(key, history, ends, tries, grow)
        if history.size <= self._max_bytes:
            self._cached.put(key, history, history.size)
        else:
            self.forget(key)
        return history

    def forget(self, key: StoreKey) -> None:
        self._cached.forget(key)

    async def _read_missing(
        self, key: StoreKey, history: StoredHistory, ends: Collection[str], tries: int, grow: Grow
    ) -> None:
        """Reads the blocks that the paths to `ends` lack, at most `tries` times by name, else all blocks."""
        for _ in range(tries):
            missing = history.missing(ends)
            if not missing:
                return
            if not await self._read(key, history, sorted(missing), grow):
                break
        await self._read(key, history, None, grow)
        history.note_all_read(ends)

    async def _read(self, key: StoreKey, history: StoredHistory, names: list[str] | None, grow: Grow) -> int:
        """Reads the blocks with these names, or all blocks if `names` is None. Returns how many were found."""
        blocks = await self._stored.store.blocks(key, names)
        size = sum(map(plain_size, blocks.values()))
        await grow(size)
        try:
            if size < PLAIN_IN_THREAD and sum(map(len, blocks.values())) < IN_THREAD:
                decoded = decode_blocks(blocks, history.endpoint)
            else:
                decoded = await asyncio.to_thread(decode_blocks, blocks, history.endpoint)
            history.add(decoded)
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a block cannot be read: {type(error).__name__}") from error
        return len(blocks)
