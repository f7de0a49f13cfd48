"""A store around another one that compresses metas, records, blocks, facts and the handovers of leases.

A compressed value begins with two bytes: the version of this format, and the codec. Any other value is stored as it is,
so values that are older than compression can still be read. The version byte begins no UTF-8 text; a value that begins
with it by chance is wrapped with the codec that changes nothing.

A value of a newer version, or with a codec that this version does not know, is a miss, like a newer document. A value
that cannot be decompressed, or that would have more than `LARGEST` bytes, is corrupt. Values of `IN_THREAD` bytes and
more are compressed and decompressed in a thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from proxy.store.base import FindResult, Lease, SessionKey, SessionStore, Snapshot, StoreError, Write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")

VERSION = 0xC1  # a byte that does not occur in UTF-8
PLAIN, ZSTD = 0, 1

SMALLEST = 1024  # bytes; compressing a smaller value saves too little
LARGEST = 64 * 1024 * 1024  # bytes that one value may decompress to
IN_THREAD = 64 * 1024
LEVEL = 3


class NewerFormat(Exception):
    """The value was written by a newer version of this program."""


class _Packing(threading.local):
    """One compressor per thread, since creating one takes longer than compressing most values."""

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(LEVEL)

    def frame(self, data: bytes) -> bytes:
        """`data` as one complete zstd frame."""
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


_packing = _Packing()


def compress(data: bytes) -> bytes:
    """`data` in its stored form: compressed where that makes it smaller."""
    if len(data) >= SMALLEST:
        packed = bytes((VERSION, ZSTD)) + _packing.frame(data)
        if len(packed) < len(data):
            return packed
    return bytes((VERSION, PLAIN)) + data if data[:1] == bytes((VERSION,)) else data


def decompress(stored: bytes) -> bytes:
    """The value in stored form, decompressed. Raises `NewerFormat`, or StoreError `store-corrupt`."""
    if stored[:1] != bytes((VERSION,)):
        return stored
    match stored[1:2]:
        case b"\x00":
            return stored[2:]
        case b"\x01":
            return _decompress_zstd(stored[2:])
    raise NewerFormat


def _decompress_zstd(packed: bytes) -> bytes:
    decompressor = zstd.ZstdDecompressor()
    try:
        data = decompressor.decompress(packed, LARGEST)
    except zstd.ZstdError as error:
        raise StoreError("store-corrupt", f"a compressed value is broken: {error}") from None
    if not decompressor.eof:
        raise StoreError("store-corrupt", f"a compressed value is cut, or larger than {LARGEST} bytes")
    return data


class CompressedStore:
    """`SessionStore` that compresses the values that it stores in `inner`."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner

    async def load(self, key: SessionKey) -> Snapshot | None:
        stored = await self.inner.load(key)
        return None if stored is None else await _snapshot_or_none(stored)

    async def save(self, key: SessionKey, write: Write) -> bool:
        size = len(write.meta) + _size(write.blocks)
        return await self.inner.save(key, await _run_sized(lambda: _compress_write(write), size))

    async def put_record(self, key: SessionKey, name: str, record: bytes, ttl: int) -> bytes:
        packed = await _run_sized(lambda: compress(record), len(record))
        kept = await self.inner.put_record(key, name, packed, ttl)
        if kept == packed:
            return record
        return await _decompress_or_raise(kept, f"the record {name}")

    async def mark_standing(self, key: SessionKey, name: str) -> None:
        await self.inner.mark_standing(key, name)

    async def blocks(self, key: SessionKey, names: Sequence[str] | None = None) -> dict[str, bytes]:
        stored = await self.inner.blocks(key, names)
        return await _run_sized(lambda: _decompress_known(stored), _size(stored))

    async def find(self, tenant: str, digests: Sequence[str], likely: Sequence[str] = ()) -> FindResult:
        found = await self.inner.find(tenant, digests, likely)
        if not found.snapshots:
            return found
        read = {name: await _snapshot_or_none(stored) for name, stored in found.snapshots.items()}
        return found._replace(snapshots={name: snapshot for name, snapshot in read.items() if snapshot is not None})

    async def lease(self, tenant: str, name: str, holder: str, ttl: float) -> Lease:
        return await _decompress_lease(await self.inner.lease(tenant, name, holder, ttl), name)

    async def read_lease(self, tenant: str, name: str) -> Lease:
        return await _decompress_lease(await self.inner.read_lease(tenant, name), name)

    async def release(self, tenant: str, name: str, holder: str, handover: bytes, ttl: float) -> None:
        packed = await _run_sized(lambda: compress(handover), len(handover))
        await self.inner.release(tenant, name, holder, packed, ttl)

    async def get_fact(self, name: str) -> bytes | None:
        stored = await self.inner.get_fact(name)
        return None if stored is None else await _decompress_or_raise(stored, f"the fact {name}")

    async def put_fact(self, name: str, fact: bytes, ttl: int) -> None:
        await self.inner.put_fact(name, await _run_sized(lambda: compress(fact), len(fact)), ttl)

    async def sessions(self, tenant: str | None = None) -> list[SessionKey]:
        return await self.inner.sessions(tenant)

    async def delete(self, key: SessionKey) -> bool:
        return await self.inner.delete(key)

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        await self.inner.close()


async def _run_sized(work: Callable[[], T], size: int) -> T:
    return work() if size < IN_THREAD else await asyncio.to_thread(work)


async def _snapshot_or_none(stored: Snapshot) -> Snapshot | None:
    """A snapshot with its values decompressed; None where a newer version wrote it."""
    try:
        return await _run_sized(lambda: _decompress_snapshot(stored), len(stored.meta) + _size(stored.records))
    except NewerFormat:
        return None


async def _decompress_or_raise(stored: bytes, what: str) -> bytes:
    """A decompressed value that cannot be treated as a miss: raises StoreError where a newer version wrote it."""
    try:
        return await _run_sized(lambda: decompress(stored), len(stored))
    except NewerFormat:
        raise StoreError("store-schema", f"a newer version wrote {what}") from None


async def _decompress_lease(lease: Lease, name: str) -> Lease:
    return lease._replace(handover=await _decompress_or_raise(lease.handover, f"what the lease {name} left"))


def _decompress_snapshot(snapshot: Snapshot) -> Snapshot:
    return snapshot._replace(meta=decompress(snapshot.meta), records=_decompress_known(snapshot.records))


def _compress_write(write: Write) -> Write:
    blocks = {digest: compress(block) for digest, block in write.blocks.items()}
    return Write(compress(write.meta), write.revision, write.ttl, blocks, write.index)


def _decompress_known(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """The values decompressed, without those of a newer format."""
    known = {}
    for name, value in stored.items():
        try:
            known[name] = decompress(value)
        except NewerFormat:
            continue
    return known


def _size(values: Mapping[str, bytes]) -> int:
    return sum(map(len, values.values()))
