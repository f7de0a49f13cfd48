"""Stored values: compressed and read back; those of newer versions are a miss, and broken ones are reported."""

import json
import random
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.conversations.codec import encode_session
from proxy.conversations.histories import StoredHistory
from proxy.conversations.session import Session
from proxy.conversations.stored import IN_THREAD, StoredSessions
from proxy.store import open_store
from proxy.store.access import MAX_BYTES, NEWER, SMALLEST, compress, decompress
from proxy.store.base import Store, StoreError, StoreKey, Write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b'{"role":"user","content":"the same words again"}' * 100
UNKNOWN = b"\xc1\x07whatever"


@given(st.binary(max_size=2 * SMALLEST) | st.binary(max_size=64).map(lambda part: part * 64))
def test_a_value_comes_back_and_grows_by_two_bytes_at_most(data: bytes) -> None:
    assert decompress(compress(data)) == data
    assert len(compress(data)) <= len(data) + 2


def test_one_turn_of_a_conversation_is_compressed() -> None:
    turn = block_of(
        "Which of the two beds gets more sun after noon, and can the tomatoes go there in May? The old plan had them"
        " by the wall, next to the water barrel, but last year half of them got blight, I think from the splashing.",
        "The south bed. It has sun from eleven to six once the hedge is cut, and the wall keeps the night frost away."
        " Plant them two hand widths apart, give each a stake, and water the soil, not the leaves: blight needs wet"
        " leaves. If you want to be safe, choose a variety that resists it, and take off the lowest leaves in June.",
    )
    assert len(turn) < 1_000
    assert len(compress(turn)) < 0.75 * len(turn)


def block_of(question: str, answer: str) -> bytes:
    messages = [json.dumps({"role": "user", "content": question}), json.dumps({"role": "assistant", "content": answer})]
    digests = [sha256(message.encode()).hexdigest()[:32] for message in messages]
    return json.dumps({"v": 2, "from": digests[0][::-1], "digests": digests, "messages": messages}).encode()


def test_odd_values_are_neither_mistaken_nor_packed() -> None:
    for data in (b"\xc1", b"\xc1\x00", b"\xc1\x01", UNKNOWN, compress(TEXT)):
        assert decompress(compress(data)) == data
    noise = random.Random(1).randbytes(4 * SMALLEST).replace(b"\xc1", b"\xc2")
    assert compress(noise) == noise
    assert compress(TEXT[: SMALLEST - 1]) == TEXT[: SMALLEST - 1]
    assert len(compress(TEXT)) < len(TEXT) / 10


def test_an_unknown_codec_is_newer_and_a_cut_value_corrupt() -> None:
    for stored in [b"\xc1", UNKNOWN]:
        assert decompress(stored) == NEWER
    for stored in [compress(TEXT)[:-5], b"\xc1\x01not zstd", b"\xc1\x01"]:
        with pytest.raises(StoreError) as raised:
            decompress(stored)
        assert raised.value.reason == "store-corrupt"


def test_a_value_that_would_fill_the_memory_is_corrupt() -> None:
    bomb = b"\xc1\x01" + zstd.compress(bytes(MAX_BYTES + 1))
    assert len(bomb) < 10_000
    with pytest.raises(StoreError, match="larger than") as raised:
        decompress(bomb)
    assert raised.value.reason == "store-corrupt"


KEY = StoreKey("tenant", "session")
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
