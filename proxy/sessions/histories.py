"""The blocks that a session's history is stored in, one for each turn, and a cache of the decoded ones.

A block holds the messages that a request added to its branch: their digests, and their text unless only digests may be
kept. Its name is the chain digest that it ends with, and it holds the chain digest that it goes on from. So the blocks
of a session form a tree, and the path to any node can be walked back to the root. A block of append mode holds one
append instead, and names the block before.

Blocks never change, so a block that was decoded once serves every later turn. A turn reads by name the blocks that are
not cached, usually the newest one only; it reads all blocks of the session only where reading by name does not lead
back to the beginning. When the cached sessions exceed a number of bytes together, the least recently used one is
dropped.

A session that was deleted and created again has another `created_at`, and nothing cached of the old one is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from proxy.endpoints.endpoint import Endpoint
from proxy.endpoints.table import endpoint_named
from proxy.request.message_cache import Element
from proxy.runtime.lru import Lru
from proxy.sessions.codec import StoredMessage, block_document, messages_of
from proxy.sessions.session import CHAT, NO_TIP, Branch, Session, Tip
from proxy.sessions.stored import StoredSessions
from proxy.store.access import decompress
from proxy.store.base import StoreError, StoreKey
from strategies.core.alignment import Tree
from strategies.core.digest import ROOT
from strategies.core.messages import Message, Reader, Role, unknown
from strategies.core.parsing import loads

MAX_BYTES = 32 * 1024 * 1024
IN_THREAD = 16 * 1024  # bytes of blocks as stored; from here on they are decoded in a thread
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
    raws = (*document["messages"], document["reply"])
    return StoredAppend(Tip(*document["before"]), tuple(Element.of(raw, endpoint) for raw in raws))


def history_at(tip: Tip, blocks: Mapping[str, StoredAppend]) -> History:
    """The history that ends at `tip`; raises `KeyError` where a block is missing."""
    appends: list[StoredAppend] = []
    at = tip
    while at.block:
        appends.append(blocks[at.block])
        at = appends[-1].base
    elements = [element for each in reversed(appends) for element in each.elements]
    newest = len(appends[0].elements) if appends else 0
    before = appends[0].base if appends else NO_TIP
    return History(tip, tuple(elements), before, tuple(elements[: len(elements) - newest]))


@dataclass(frozen=True, slots=True)
class History:
    """An appended history up to and with its newest reply, and the same history before its newest append."""

    tip: Tip = NO_TIP
    elements: tuple[Element, ...] = ()
    tip_before: Tip = NO_TIP
    elements_before: tuple[Element, ...] = ()


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
        self._cached: Lru[StoreKey, _Cached] = Lru(max_bytes)

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
