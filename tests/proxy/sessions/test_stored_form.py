"""What is stored is compressed, and what older and newer versions have stored is read as ever, or is a miss."""

from __future__ import annotations

import pytest

from proxy.sessions.codec import encode_session
from proxy.sessions.histories import StoredHistory
from proxy.sessions.session import Session
from proxy.sessions.stored import IN_THREAD, StoredSessions
from proxy.store import open_store
from proxy.store.access import compress
from proxy.store.base import Store, StoreError, StoreKey, Write

pytestmark = pytest.mark.anyio

KEY = StoreKey("tenant", "session")
TEXT = b'{"role":"user","content":"the same words again"}' * 100
UNKNOWN = b"\xc1\x07whatever"
LARGE = Session("s", "given", 0.0, settings={"note": "the same words again " * 100})


async def test_a_session_and_its_blocks_are_stored_compressed_and_read_back(store: Store) -> None:
    stored = StoredSessions(store, 10.0)
    for block in (TEXT, TEXT * (2 * IN_THREAD // len(TEXT))):
        await store.delete(KEY)
        assert await stored.save(KEY, LARGE, 60, {"d": block})

        found = await store.load(KEY)
        assert found is not None
        assert found.meta == compress(encode_session(LARGE))
        assert await store.blocks(KEY) == {"d": compress(block)}
        assert await StoredSessions(store, 10.0).load(KEY) == LARGE._replace(revision=1)


async def test_a_large_block_that_compresses_well_counts_as_it_is_stored() -> None:
    store = await open_store("memory://", max_session_bytes=10_000)
    assert await StoredSessions(store, 10.0).save(KEY, LARGE, 60, {"d": b"all the same " * 10_000})
    await store.close()


async def test_a_session_from_before_there_was_compression_reads_as_ever(store: Store) -> None:
    await store.save(KEY, Write(encode_session(LARGE), 0, 60))

    assert await StoredSessions(store, 10.0).load(KEY) == LARGE._replace(revision=1)


async def test_what_a_newer_version_has_compressed_is_a_miss(store: Store) -> None:
    stored = StoredSessions(store, 10.0)
    await store.save(KEY, Write(encode_session(LARGE), 0, 60))
    await store.put_record(KEY, "new", UNKNOWN, 60)
    found = await stored.load(KEY)
    assert found is not None
    assert found.condensations == ()
    assert stored.records.condensation(UNKNOWN, standing=True) is None
    assert not StoredHistory.of({"d": UNKNOWN}).tree.messages

    await store.save(KEY, Write(UNKNOWN, 1, 60))
    assert await stored.load(KEY) is None


async def test_cut_records_are_left_out_and_cut_documents_are_corrupt(store: Store) -> None:
    await store.save(KEY, Write(encode_session(LARGE), 0, 60))
    await store.put_record(KEY, "r", compress(TEXT)[:-5], 60)

    session = await StoredSessions(store, 10.0).load(KEY)
    assert session is not None
    assert session.condensations == ()

    await store.save(KEY, Write(compress(TEXT)[:-5], 1, 60))
    with pytest.raises(StoreError, match="store-corrupt"):
        await StoredSessions(store, 10.0).load(KEY)


async def test_a_fact_is_stored_compressed_and_read_back(store: Store) -> None:
    facts = StoredSessions(store, 10.0).facts
    assert await facts.put("f", TEXT, 60, "a fact")

    assert await store.get_fact("f") == compress(TEXT)
    assert await facts.get("f", "a fact") == TEXT
    await store.put_fact("f", TEXT, 60)
    assert await facts.get("f", "a fact") == TEXT
    await store.put_fact("f", compress(TEXT)[:-5], 60)
    assert await facts.get("f", "a fact") is None
