"""Records of condensations are checked when they are read, since they are sent to upstreams, and are decoded once."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.conversations.codec import MAX_BYTES, Records, encode_condensation, encode_session, record_name
from proxy.conversations.session import Session
from proxy.conversations.stored import StoredSessions
from proxy.store import open_store
from proxy.store.base import Snapshot, StoreKey, Write
from strategies.core.pieces import Keep, Literal, PieceKind
from tests.support.transcripts import condensation_of

SUMMARY = Literal('{"role": "user", "content": "what was said"}', PieceKind.REPLACEMENT)
MADE = condensation_of(
    digest=b"d" * 16,
    covered=4,
    pieces=(Keep(0), Keep(1), SUMMARY, Literal('{"role": "tool", "content": "cut"}', PieceKind.MASKED, 3)),
)

Damage = Callable[[list[Any]], Any]
DAMAGES: dict[str, Damage] = {
    "text that is no JSON": lambda pieces: pieces[1].update(raw='{"role": "user", "cont'),
    "JSON that is no message": lambda pieces: pieces[1].update(raw='["role"]'),
    "a message without a role": lambda pieces: pieces[1].update(raw='{"content": "x"}'),
    "a role that is no text": lambda pieces: pieces[1].update(raw='{"role": 1}'),
    "no text": lambda pieces: pieces[1].update(raw=None),
    "text nested too deeply": lambda pieces: pieces[1].update(raw='{"role":' + "[" * 100_000),
    "a kind that there is not": lambda pieces: pieces[1].update(kind="nonsense"),
    "a kept message that is not covered": lambda pieces: pieces.__setitem__(0, [0, 5]),
    "a kept message before the first": lambda pieces: pieces.__setitem__(0, [-1, 2]),
    "a run without an end": lambda pieces: pieces.__setitem__(0, [0]),
    "a place that is not covered": lambda pieces: pieces[2].update(origin=4),
    "a place before the first": lambda pieces: pieces[2].update(origin=-1),
    "no piece": lambda pieces: pieces.__setitem__(1, "nonsense"),
}


def damaged(how: Damage) -> bytes:
    document = json.loads(encode_condensation(MADE))
    how(document["pieces"])
    return json.dumps(document).encode()


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
async def test_a_session_with_such_a_record_is_read_without_it(how: Damage) -> None:
    store, key = await open_store("memory://"), StoreKey("t", "s")
    await store.save(key, Write(encode_session(Session("s", "given", 0.0)), 0, 60))
    await store.put_record(key, record_name(MADE.digest, 1), damaged(how), 60)
    await store.put_record(key, record_name(MADE.digest, 2), encode_condensation(MADE), 60)
    session = await StoredSessions(store, 1.0).load(key)
    assert session is not None
    assert [record.digest for record in session.condensations] == [MADE.digest]
    await store.close()


def test_a_read_record_is_not_decoded_again() -> None:
    records, data = Records(), encode_condensation(MADE)
    first, again, prepared = (records.condensation(data, standing=standing) for standing in (True, True, False))
    assert first is again
    assert prepared is not None
    assert not prepared.standing


def test_unused_records_are_forgotten_when_all_are_too_large() -> None:
    data = encode_condensation(MADE)
    other = data.replace(b'"c1"', b'"c2"')
    records = Records(max_bytes=len(data) + len(other) - 1)
    first = records.condensation(data, standing=True)
    records.condensation(other, standing=True)
    again = records.condensation(data, standing=True)
    assert first == again
    assert first is not again


def test_the_last_record_is_always_kept() -> None:
    data = encode_condensation(MADE)
    other = data.replace(b'"c1"', b'"c2"')
    for most_bytes, kept in ((len(data) + len(other), [data, other]), (0, [other])):
        records = Records(most_bytes)
        read = {each: records.condensation(each, standing=True) for each in (data, other)}
        assert all(records.condensation(each, standing=True) is read[each] for each in kept)


def test_a_session_that_was_read_or_written_is_not_decoded_again() -> None:
    session, records = Session("s", "given", 0.0, settings={"strategy": "mask"}), Records()
    meta = encode_session(session)
    first, again = records.session(Snapshot(meta, 3)), records.session(Snapshot(bytes(bytearray(meta)), 4))
    assert first == session._replace(revision=3)
    assert again == session._replace(revision=4)
    assert first is not None
    assert again is not None
    assert first.settings is again.settings
    fresh = Records()
    fresh.put_session(meta, session, len(meta))
    written = fresh.session(Snapshot(meta, 1))
    assert written is not None
    assert written.settings is session.settings


def test_a_session_has_the_records_of_its_snapshot() -> None:
    meta, data, records = encode_session(Session("s", "given", 0.0)), encode_condensation(MADE), Records()
    snapshots = [
        Snapshot(meta, 1),
        Snapshot(meta, 1, {"n": data}),
        Snapshot(meta, 1, {"n": data}, frozenset("n")),
        Snapshot(meta, 1),
    ]
    read = [records.session(snapshot) for snapshot in snapshots]
    known = [[each.standing for each in session.condensations] for session in read if session is not None]
    assert known == [[], [False], [True], []]


def test_the_records_that_are_kept_take_less_than_16_megabytes() -> None:
    kept = Records()
    kept_messages = tuple(Keep(place) for place in range(40))
    datas = [
        encode_condensation(replace(MADE, id=f"c{number}", covered=40, pieces=(*kept_messages, SUMMARY)))
        for number in range(200)
    ]
    kept.condensation(datas[0], standing=False)
    tracemalloc.start()
    try:
        for data in datas:
            kept.condensation(data, standing=False)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert MAX_BYTES * taken / sum(map(len, datas)) < 16 * 1024 * 1024
