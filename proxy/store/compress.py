"""Compressed values: a store around another that keeps metas, records, blocks, facts and what leases leave smaller.

A compressed value begins with two bytes, the version of this format and the codec. Any other value is as it was
given, so what was stored before there was compression reads as ever; the version byte begins no UTF-8 text, and a
value that begins with it by chance is wrapped with the codec that changes nothing.

A value of a newer version, or of a codec that this one does not know, is a miss, as a newer document is. One that
does not decompress, or to more than `LARGEST`, is corrupt. Values from `IN_THREAD` bytes on leave the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from proxy.store.base import Found, Lease, SessionKey, SessionStore, Snapshot, StoreError, Write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

VERSION = 0xC1  # no byte of UTF-8
PLAIN, ZSTD = 0, 1

SMALLEST = 1024  # bytes; below, little is saved for what it takes
LARGEST = 64 * 1024 * 1024  # bytes that one value may decompress to
IN_THREAD = 64 * 1024
LEVEL = 3


class NewerFormat(Exception):
    """A value that a newer version of this program wrote."""


class _Packing(threading.local):
    """A compressor for each thread: to make one takes longer than most values do."""

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(LEVEL)

    def frame(self, data: bytes) -> bytes:
        """Data as a frame of its own."""
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


_packing = _Packing()


def compressed(data: bytes) -> bytes:
    """`data` as it is stored: compressed where that makes it smaller."""
    if len(data) >= SMALLEST:
        packed = bytes((VERSION, ZSTD)) + _packing.frame(data)
        if len(packed) < len(data):
            return packed
    return bytes((VERSION, PLAIN)) + data if data[:1] == bytes((VERSION,)) else data


def decompressed(stored: bytes) -> bytes:
    """What was stored. Raises `NewerFormat`, and StoreError `store-corrupt`."""
    if stored[:1] != bytes((VERSION,)):
        return stored
    match stored[1:2]:
        case b"\x00":
            return stored[2:]
        case b"\x01":
            return _inflated(stored[2:])
    raise NewerFormat


def _inflated(packed: bytes) -> bytes:
    decompressor = zstd.ZstdDecompressor()
    try:
        data = decompressor.decompress(packed, LARGEST)
    except zstd.ZstdError as error:
        raise StoreError("store-corrupt", f"a compressed value is broken: {error}") from None
    if not decompressor.eof:
        raise StoreError("store-corrupt", f"a compressed value is cut, or larger than {LARGEST} bytes")
    return data


class CompressedStore:
    """`SessionStore` that compresses what it gives to `inner`."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner

    async def load(self, key: SessionKey) -> Snapshot | None:
        stored = await self.inner.load(key)
        return None if stored is None else await _snapshot(stored)

    async def save(self, key: SessionKey, write: Write) -> bool:
        size = len(write.meta) + _size(write.blocks)
        return await self.inner.save(key, await _aside(lambda: _written(write), size))

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        given = await _aside(lambda: compressed(record), len(record))
        kept = await self.inner.put_record(key, name, given, ttl)
        if kept == given:
            return record
        return await _ours(kept, f"the record {name}")

    async def stand(self, key: SessionKey, name: str) -> None:
        await self.inner.stand(key, name)

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        stored = await self.inner.blocks(key, names)
        return await _aside(lambda: _known(stored), _size(stored))

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> Found:
        found = await self.inner.find(tenant, digests, likely)
        if not found.read:
            return found
        read = {name: await _snapshot(stored) for name, stored in found.read.items()}
        return found._replace(read={name: snapshot for name, snapshot in read.items() if snapshot is not None})

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        return await _read_lease(await self.inner.lease(tenant, name, holder, ttl), name)

    async def leased(self, tenant: str, name: str) -> Lease:
        return await _read_lease(await self.inner.leased(tenant, name), name)

    async def release(self, tenant: str, name: str, holder: str, left: bytes, ttl: float) -> None:
        given = await _aside(lambda: compressed(left), len(left))
        await self.inner.release(tenant, name, holder, given, ttl)

    async def recall(self, name: str) -> bytes | None:
        stored = await self.inner.recall(name)
        return None if stored is None else await _ours(stored, f"the fact {name}")

    async def remember(self, name: str, fact: bytes, ttl: int) -> None:
        await self.inner.remember(name, await _aside(lambda: compressed(fact), len(fact)), ttl)

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        return await self.inner.sessions(tenant)

    async def delete(self, key: SessionKey) -> bool:
        return await self.inner.delete(key)

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()


async def _aside(work: Callable[[], T], size: int) -> T:
    return work() if size < IN_THREAD else await asyncio.to_thread(work)


async def _snapshot(stored: Snapshot) -> Snapshot | None:
    """A session as it was given to us; None where a newer version wrote it."""
    try:
        return await _aside(lambda: _read(stored), len(stored.meta) + _size(stored.records))
    except NewerFormat:
        return None


async def _ours(stored: bytes, what: str) -> bytes:
    """A value that is no miss; raises StoreError where a newer version wrote it."""
    try:
        return await _aside(lambda: decompressed(stored), len(stored))
    except NewerFormat:
        raise StoreError("store-schema", f"a newer version wrote {what}") from None


async def _read_lease(lease: Lease, name: str) -> Lease:
    return lease._replace(left=await _ours(lease.left, f"what the lease {name} left"))


def _read(snapshot: Snapshot) -> Snapshot:
    return snapshot._replace(meta=decompressed(snapshot.meta), records=_known(snapshot.records))


def _written(write: Write) -> Write:
    blocks = {digest: compressed(block) for digest, block in write.blocks.items()}
    return Write(compressed(write.meta), write.revision, write.ttl, blocks, write.index)


def _known(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """The values of a format that we know."""
    known = {}
    for name, value in stored.items():
        try:
            known[name] = decompressed(value)
        except NewerFormat:
            continue
    return known


def _size(values: Mapping[str, bytes]) -> int:
    return sum(map(len, values.values()))
