"""Encryption at rest: a store in front of another one, through which every value of it comes and goes.

A sealed value is the version byte and codec `SEALED` of `access`, a random nonce of 12 bytes, and what AES-256-GCM
makes of the value; who reads it without a key takes it for a document of a newer version. Kind, tenant, entry and
name are associated data: a value that was moved, altered, or never sealed reads as `UNREADABLE`, which readers treat as
damaged. A value may be sealed under any of the keys, and is written under the first.

One entry of the store, which no listing shows, is a value sealed under the key. The first writer wins, so replicas that
start together with different keys do not both go on. It is looked at before the first operation; until it fits, each
operation fails with `store-key`, and nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.store.access import SEALED, UNREADABLE, VERSION
from proxy.store.base import (
    CHECK,
    FOR_GOOD,
    SECRET,
    FindResult,
    KeptBytes,
    Part,
    Snapshot,
    Store,
    StoreError,
    StoreKey,
    Write,
)

NONCE = 12  # bytes
_HEAD = bytes((VERSION, SEALED))
_PAUSE = 0.005  # seconds between two sessions that change keys, for requests to come first
_TOLD = 1_000  # sessions between two lines of the log
_LOOKED_AT = 100  # entries that tell whether a store without a check has values in plain

_log = logging.getLogger(__name__)


class SealedStore:
    """`Store` over `store`, with keys of 32 bytes; the first one writes."""

    def __init__(self, store: KeptBytes, keys: Sequence[bytes]) -> None:
        self._store = store
        self._keys = [AESGCM(key) for key in keys]
        self._fits = False

    async def load(self, key: StoreKey) -> Snapshot | None:
        store = await self._checked()
        return self._opened_entry(key, await store.load(key))

    async def save(self, key: StoreKey, write: Write) -> bool:
        store = await self._checked()
        blocks = {name: self._seal(block, "blocks", *key, name) for name, block in write.blocks.items()}
        journal = self._seal(write.journal, "journal", *key) if write.journal else b""
        sealed = replace(write, meta=self._seal(write.meta, "meta", *key, ""), blocks=blocks, journal=journal)
        return await store.save(key, sealed)

    async def put_record(self, key: StoreKey, name: str, record: bytes, ttl: int) -> bytes:
        store = await self._checked()
        place = ("records", *key, name)
        return self._open(await store.put_record(key, name, self._seal(record, *place), ttl), *place)

    async def mark(self, key: StoreKey, name: str) -> None:
        await (await self._checked()).mark(key, name)

    async def blocks(self, key: StoreKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        found = await (await self._checked()).blocks(key, names)
        return {name: self._open(block, "blocks", *key, name) for name, block in found.items()}

    async def journal(self, key: StoreKey) -> list[tuple[int, bytes]]:
        items = await (await self._checked()).journal(key)
        return [(number, self._open(item, "journal", *key)) for number, item in items]

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        found = await (await self._checked()).find(tenant, digests, likely)
        opened = {name: self._opened_entry(StoreKey(tenant, name), each) for name, each in found.snapshots.items()}
        return FindResult(found.names, {name: each for name, each in opened.items() if each is not None})

    async def claim(self, tenant: str, name: str, holder: str, ttl: float) -> bool:
        return await (await self._checked()).claim(tenant, name, holder, ttl)

    async def get_fact(self, name: str) -> bytes | None:
        fact = await (await self._checked()).get_fact(name)
        return None if fact is None else self._open(fact, "fact", name)

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        await (await self._checked()).put_fact(name, self._seal(fact, "fact", name), ttl)

    async def add(self, name: str, amounts: Mapping[str, int], ttl: int) -> None:
        await (await self._checked()).add(name, amounts, ttl)

    async def sums(self, names: Sequence[str]) -> list[dict[str, int]]:
        return await (await self._checked()).sums(names)

    async def push(self, name: str, items: Sequence[bytes], ttl: int) -> None:
        await (await self._checked()).push(name, [self._seal(item, "ring", name) for item in items], ttl)

    async def ring(self, name: str) -> list[bytes]:
        return [self._open(item, "ring", name) for item in await (await self._checked()).ring(name)]

    async def spend(self, name: str, amount: int, most: int) -> int:
        return await (await self._checked()).spend(name, amount, most)

    async def keys(self, tenant: str | None = None) -> list[StoreKey]:
        return [key for key in await (await self._checked()).keys(tenant) if key != CHECK]

    async def newest(self, count: int, tenant: str = "") -> list[StoreKey]:
        found = await (await self._checked()).newest(count + 1, tenant)
        return [key for key in found if key != CHECK][:count]

    async def delete(self, key: StoreKey) -> bool:
        return await (await self._checked()).delete(key)

    async def ping(self) -> None:
        await (await self._checked()).ping()

    async def weaknesses(self) -> set[str]:
        return await self._store.weaknesses()

    async def close(self) -> None:
        await self._store.close()

    def _opened_entry(self, key: StoreKey, found: Snapshot | None) -> Snapshot | None:
        if found is None:
            return None
        records = {name: self._open(each, "records", *key, name) for name, each in found.records.items()}
        return found._replace(meta=self._open(found.meta, "meta", *key, ""), records=records)

    def _seal(self, value: bytes, *place: str) -> bytes:
        nonce = os.urandom(NONCE)
        return _HEAD + nonce + self._keys[0].encrypt(nonce, value, ":".join(place).encode())

    def _open(self, sealed: bytes, *place: str) -> bytes:
        for key in self._keys:
            opened = _opened(key, sealed, place)
            if opened is not None:
                return opened
        return UNREADABLE

    async def _checked(self) -> Store:
        """The store behind this one; raises `store-key` unless it was written under one of the keys, or is empty."""
        if not self._fits:
            await self._check()
            self._fits = True
        return self._store

    async def reseal(self) -> None:
        # Records and blocks are never written again, so without this a session would need the key of its beginning.
        changed = lost = 0
        try:
            keys = await self.keys()
            for number, key in enumerate(keys):
                if number and number % _TOLD == 0:
                    _log.warning("encrypting with the new key: %d of %d sessions", number, len(keys))
                for part, name, sealed in await self._values(key):
                    place = (part, *key, name)
                    if _opened(self._keys[0], sealed, place) is None:
                        opened = self._open(sealed, *place)
                        if opened == UNREADABLE:
                            lost += 1
                        elif await self._store.swap(key, part, name, sealed, self._seal(opened, *place)):
                            changed += 1
                await asyncio.sleep(_PAUSE)
        except StoreError as error:
            _log.warning("not all of the store is encrypted with the new key yet; the next start continues: %s", error)
            return
        _log.warning("the store is encrypted with the new key; values changed: %d, not readable: %d", changed, lost)

    async def _values(self, key: StoreKey) -> list[tuple[Part, str, bytes]]:
        """All values of an entry but those of its journal, as they are stored."""
        if key == SECRET:
            return [("records", key.name, await self._store.put_record(key, key.name, b"", FOR_GOOD))]
        found = await self._store.load(key)
        values: list[tuple[Part, str, bytes]] = []
        if found is not None:
            values = [("meta", "", found.meta), *(("records", *each) for each in found.records.items())]
            values += [("blocks", *each) for each in (await self._store.blocks(key)).items()]
        return values

    async def _check(self) -> None:
        check = ("meta", *CHECK, "")
        found = await self._store.load(CHECK)
        if found is None:
            await self._refuse_plain()
            await self._store.save(CHECK, Write(self._seal(b"", *check), 0, FOR_GOOD))
            found = await self._store.load(CHECK)
        if found is None or self._open(found.meta, *check) == UNREADABLE:
            raise StoreError("store-key", "the store is encrypted under another key than store.encryption_key")
        if _opened(self._keys[0], found.meta, check) is None:  # it was sealed under an old key, which may go one day
            await self._store.save(CHECK, Write(self._seal(b"", *check), found.revision, FOR_GOOD))

    async def _refuse_plain(self) -> None:
        """Raises `store-key` if what was saved last is not sealed under one of the keys."""
        for key in await self._store.newest(_LOOKED_AT):
            found = await self._store.load(key)
            if found is not None and not found.meta.startswith(_HEAD):
                raise StoreError(
                    "store-key",
                    "the store has sessions that are not encrypted: name an empty one in store.url, or delete them",
                )
            if found is not None and self._open(found.meta, "meta", *key, "") == UNREADABLE:
                raise StoreError("store-key", "the store is encrypted under another key than store.encryption_key")


def _opened(key: AESGCM, sealed: bytes, place: Sequence[str]) -> bytes | None:
    if not sealed.startswith(_HEAD):
        return None
    head = len(_HEAD) + NONCE
    try:
        return key.decrypt(sealed[len(_HEAD) : head], sealed[head:], ":".join(place).encode())
    except (InvalidTag, ValueError):  # a ValueError for a value that is too short
        return None
