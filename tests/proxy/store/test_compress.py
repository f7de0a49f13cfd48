"""Compression: values survive a round trip, uncompressed old values can be read, and broken ones are reported."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store.base import FindResult, Lease, SessionKey, SessionStore, Snapshot, StoreError, Write
from proxy.store.compress import IN_THREAD, LARGEST, SMALLEST, CompressedStore, NewerFormat, compress, decompress
from proxy.store.sqlite import SqliteStore

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KEY = SessionKey("tenant", "session")
TEXT = b'{"role":"user","content":"the same words again"}' * 100
NEWER = b"\xc1\x07whatever"


@given(st.binary(max_size=2 * SMALLEST) | st.binary(max_size=64).map(lambda part: part * 64))
def test_what_goes_in_comes_out(data: bytes) -> None:
    assert decompress(compress(data)) == data


@given(st.binary(max_size=2 * SMALLEST))
def test_no_value_grows_by_more_than_its_two_bytes(data: bytes) -> None:
    assert len(compress(data)) <= len(data) + 2


@given(st.text())
def test_text_from_before_there_was_compression_reads_as_ever(text: str) -> None:
    assert decompress(text.encode()) == text.encode()


def test_a_value_that_looks_compressed_is_not_mistaken() -> None:
    for data in (b"\xc1", b"\xc1\x00", b"\xc1\x01", NEWER, compress(TEXT)):
        assert decompress(compress(data)) == data


def test_small_and_incompressible_values_stay_as_they_are() -> None:
    noise = random.Random(1).randbytes(4 * SMALLEST).replace(b"\xc1", b"\xc2")
    assert compress(noise) == noise
    assert compress(TEXT[: SMALLEST - 1]) == TEXT[: SMALLEST - 1]
    assert len(compress(TEXT)) < len(TEXT) / 10


@pytest.mark.parametrize("stored", [b"\xc1", NEWER])
def test_a_codec_that_is_not_known_is_a_newer_one(stored: bytes) -> None:
    with pytest.raises(NewerFormat):
        decompress(stored)


@pytest.mark.parametrize("stored", [compress(TEXT)[:-5], b"\xc1\x01not zstd", b"\xc1\x01"])
def test_a_value_that_is_cut_or_overwritten_is_corrupt(stored: bytes) -> None:
    with pytest.raises(StoreError) as raised:
        decompress(stored)
    assert raised.value.reason == "store-corrupt"


def test_a_value_that_would_fill_the_memory_is_corrupt() -> None:
    bomb = b"\xc1\x01" + zstd.compress(bytes(LARGEST + 1))
    assert len(bomb) < 10_000
    with pytest.raises(StoreError, match="larger than") as raised:
        decompress(bomb)
    assert raised.value.reason == "store-corrupt"


@pytest.fixture
async def inner() -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(None)
    yield store
    await store.close()


@pytest.fixture
def store(inner: SqliteStore) -> SessionStore:
    return CompressedStore(inner)


@pytest.mark.anyio
async def test_metas_records_and_blocks_are_stored_compressed_and_read_back(
    store: SessionStore, inner: SqliteStore
) -> None:
    await store.save(KEY, Write(TEXT, 0, 600, {"d": TEXT + b"!"}))
    assert await store.put_record(KEY, "r", TEXT + b"?", 600) == TEXT + b"?"

    stored = await inner.load(KEY)
    assert stored == Snapshot(compress(TEXT), 1, {"r": compress(TEXT + b"?")})
    assert await inner.blocks(KEY) == {"d": compress(TEXT + b"!")}
    assert await store.load(KEY) == Snapshot(TEXT, 1, {"r": TEXT + b"?"})
    assert (await store.find(KEY.tenant, [], [KEY.session])).snapshots == {KEY.session: await store.load(KEY)}
    assert await store.blocks(KEY) == {"d": TEXT + b"!"}


@pytest.mark.anyio
async def test_a_session_from_before_reads_as_ever_and_its_record_is_first(
    store: SessionStore, inner: SqliteStore
) -> None:
    await inner.save(KEY, Write(TEXT, 0, 600, {"d": TEXT}))
    await inner.put_record(KEY, "r", TEXT, 600)

    assert await store.put_record(KEY, "r", b"late", 600) == TEXT
    assert await store.load(KEY) == Snapshot(TEXT, 1, {"r": TEXT})
    assert await store.blocks(KEY) == {"d": TEXT}


@pytest.mark.anyio
async def test_what_a_newer_version_wrote_is_a_miss(store: SessionStore, inner: SqliteStore) -> None:
    await inner.save(KEY, Write(b"meta", 0, 600, {"old": TEXT, "new": NEWER}))
    await inner.put_record(KEY, "new", NEWER, 600)
    await inner.put_record(KEY, "old", TEXT, 600)

    assert await store.load(KEY) == Snapshot(b"meta", 1, {"old": TEXT})
    assert await store.blocks(KEY) == {"old": TEXT}
    with pytest.raises(StoreError) as raised:
        await store.put_record(KEY, "new", b"ours", 600)
    assert raised.value.reason == "store-schema"

    await inner.save(KEY, Write(NEWER, 1, 600, index=["d"]))
    assert await store.load(KEY) is None
    assert await store.find(KEY.tenant, ["d"], [KEY.session]) == FindResult({"d": KEY.session}, {})


@pytest.mark.anyio
async def test_what_a_lease_leaves_is_stored_compressed_and_read_back(store: SessionStore, inner: SqliteStore) -> None:
    await store.lease("tenant", "work", "one", 60)
    await store.release("tenant", "work", "one", TEXT, 60)

    assert await inner.lease("tenant", "work", "two", 60) == Lease(held=False, handover=compress(TEXT))
    assert await store.lease("tenant", "work", "two", 60) == Lease(held=False, handover=TEXT)
    assert await store.read_lease("tenant", "work") == Lease(held=False, handover=TEXT)


@pytest.mark.anyio
async def test_what_a_newer_version_left_is_not_read(store: SessionStore, inner: SqliteStore) -> None:
    await inner.lease("tenant", "work", "one", 60)
    await inner.release("tenant", "work", "one", NEWER, 60)

    with pytest.raises(StoreError) as raised:
        await store.lease("tenant", "work", "two", 60)
    assert raised.value.reason == "store-schema"


@pytest.mark.anyio
async def test_a_record_that_is_broken_makes_the_session_corrupt(store: SessionStore, inner: SqliteStore) -> None:
    await inner.save(KEY, Write(b"meta", 0, 600))
    await inner.put_record(KEY, "r", compress(TEXT)[:-5], 600)

    with pytest.raises(StoreError) as raised:
        await store.load(KEY)
    assert raised.value.reason == "store-corrupt"


@pytest.mark.anyio
async def test_values_that_leave_the_loop_are_the_same(store: SessionStore) -> None:
    large = TEXT * (2 * IN_THREAD // len(TEXT))
    await store.save(KEY, Write(large, 0, 600, {"d": large}))
    await store.put_record(KEY, "r", large, 600)

    assert await store.load(KEY) == Snapshot(large, 1, {"r": large})
    assert await store.blocks(KEY) == {"d": large}
