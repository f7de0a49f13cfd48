"""Stored histories as this process has read them.

Blocks never change, so what was decoded of a session serves every later turn: a turn reads the blocks that it does
not know by their names, which are mostly the newest one, and the whole session only where that does not lead back to
its beginning. Sessions least recently used are forgotten when all of them together exceed a number of bytes.

A session that was deleted and began anew has another time of creation, and nothing of the old one is used for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from proxy.runtime.lru import SizedLru
from proxy.sessions.append import Appended, appended_in
from proxy.sessions.blocks import Stored, block_document, messages_of
from proxy.sessions.session import Session
from proxy.sessions.stored import StoredSessions
from proxy.store.base import SessionKey, StoreError
from strategies.core.alignment import Tree
from strategies.core.digest import ROOT
from strategies.core.transcript import Message

MOST_BYTES = 64 * 1024 * 1024
IN_THREAD = 64 * 1024  # bytes of blocks; from here on they are decoded away from the event loop
BY_NAME = 4  # reads by name, each one block further back, before all of a session is read

# What one message takes in memory, roughly: its nodes; its text, once as it is stored and once as it was read.
_NODE_BYTES = 500
_TEXT_BYTES = 500
_COPIES = 2


class DecodedBlock(NamedTuple):
    """One block, decoded: the messages of a turn, or an append."""

    name: str
    messages: list[Stored]
    appended: Appended | None


class StoredHistory:
    """What is known of the blocks of one session: a tree of messages, and appends by the names of their blocks."""

    def __init__(self) -> None:
        self.tree: Tree[Stored] = Tree()
        self.appended: dict[str, Appended] = {}
        self.size = 0
        self._behind: set[str] = set()
        self._gone: set[str] = set()
        self._read: dict[Stored, Message] = {}
        self._counted_by = ""

    @classmethod
    def of(cls, blocks: Mapping[str, bytes]) -> StoredHistory:
        """The history in all blocks of a session; raises ValueError, LookupError or TypeError for a broken one."""
        history = cls()
        history.add(decoded(blocks))
        return history

    def add(self, blocks: Iterable[DecodedBlock]) -> None:
        """Adds blocks; those that are known already change nothing."""
        for block in blocks:
            if block.appended is not None and block.name not in self.appended:
                self._append(block.name, block.appended)
            if block.messages:
                self._grow(block.messages)

    def _append(self, name: str, appended: Appended) -> None:
        self.appended[name] = appended
        self.size += sum(_NODE_BYTES + _text_bytes(element.data) for element in appended.elements)
        self._behind.discard(name)
        if appended.before.block and appended.before.block not in self.appended:
            self._behind.add(appended.before.block)

    def _grow(self, messages: list[Stored]) -> None:
        before = messages[0].before
        if before != ROOT and before not in self.tree.messages:
            self._behind.add(before.hex())
        for message in messages:
            self._behind.discard(self.tree.add(message).hex())
            self.size += _NODE_BYTES + _text_bytes(message.raw)

    def missing(self, ends: Collection[str]) -> set[str]:
        """Names of blocks that are needed for the lines to `ends` and are not known, but for those that are gone."""
        unknown = {end for end in ends if end not in self.appended and bytes.fromhex(end) not in self.tree.messages}
        return (unknown | self._behind) - self._gone

    def note_all_read(self, ends: Collection[str]) -> None:
        """Notes that all blocks were read: what is still missing is gone, for a block is stored with its session."""
        self._gone |= self.missing(ends)

    def read(self, counted_by: str) -> dict[Stored, Message]:
        """What was made of stored messages, with the counts of one counter; for the restorer to fill."""
        if counted_by != self._counted_by:
            self._read, self._counted_by = {}, counted_by
        return self._read


def decoded(blocks: Mapping[str, bytes]) -> list[DecodedBlock]:
    """Blocks as they are used; raises ValueError, LookupError or TypeError for a broken one."""
    documents = ((name, block_document(data)) for name, data in blocks.items())
    return [DecodedBlock(name, messages_of(each), appended_in(each)) for name, each in documents]


def _text_bytes(raw: str | bytes | None) -> int:
    return 0 if raw is None else _TEXT_BYTES + _COPIES * len(raw)


class _Known(NamedTuple):
    """The history of a session, by when that began."""

    created_at: float
    history: StoredHistory


class Histories:
    """Reads the histories of sessions; one per app. It keeps at most `most_bytes` of them."""

    def __init__(self, stored: StoredSessions, most_bytes: int = MOST_BYTES) -> None:
        self._stored = stored
        self._most_bytes = most_bytes
        self._known: SizedLru[SessionKey, _Known] = SizedLru(most_bytes)

    async def history(self, key: SessionKey, session: Session, ends: Collection[str]) -> StoredHistory:
        """The history of a session with its lines to `ends`, as far as they are stored; raises `StoreError`.

        `ends` are chain digests in hex, or names of append mode's blocks.
        """
        known = self._known.use(key)
        if known is not None and known.created_at == session.created_at:
            history = known.history
            await self._follow(key, history, ends)
        else:
            history = StoredHistory()
            await self._read_all(key, history, ends)
        if history.size <= self._most_bytes:
            self._known.put(key, _Known(session.created_at, history), history.size)
        else:
            self.forget(key)
        return history

    def forget(self, key: SessionKey) -> None:
        """Drops what is known of a session that is gone."""
        self._known.forget(key)

    async def _follow(self, key: SessionKey, history: StoredHistory, ends: Collection[str]) -> None:
        for _ in range(BY_NAME):
            missing = history.missing(ends)
            if not missing:
                return
            if not await self._read(key, history, sorted(missing)):
                break
        await self._read_all(key, history, ends)

    async def _read_all(self, key: SessionKey, history: StoredHistory, ends: Collection[str]) -> None:
        await self._read(key, history, None)
        history.note_all_read(ends)

    async def _read(self, key: SessionKey, history: StoredHistory, names: list[str] | None) -> int:
        """Reads blocks, all where `names` is None; how many there were."""
        blocks = await self._stored.store.blocks(key, names)
        try:
            history.add(await _decoded(blocks))
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError("store-corrupt", f"a block cannot be read: {type(error).__name__}") from error
        return len(blocks)


async def _decoded(blocks: Mapping[str, bytes]) -> list[DecodedBlock]:
    if sum(map(len, blocks.values())) < IN_THREAD:
        return decoded(blocks)
    return await asyncio.to_thread(decoded, blocks)
