"""Recall: which index is searched, which messages enter it, and which indexes are dropped."""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, SupportsIndex

import pytest

from proxy.condensing.recall import MAX_ENTRIES, MAX_INDEXES, Recall, Searchable
from proxy.http.admission import Admission
from proxy.settings import LimitSettings
from proxy.store.base import StoreKey
from strategies.core.messages import Message
from strategies.core.transcript import Transcript
from strategies.memory.ranking import Index, message_entries
from tests.support.signals import Signal
from tests.support.transcripts import assistant, english, transcript_of, user

OVERLAP = 0.2  # seconds that a writer is waited for who must not come
KEY = StoreKey("tenant", "s")
SAID = transcript_of([user("where is the key?"), assistant("behind the blue barrel"), user("and the shed?")])


class Read(tuple[Message, ...]):
    """A chain that tells when a message of it is read."""

    told: Callable[[], None] = staticmethod(lambda: None)

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        self.told()
        return super().__getitem__(place)


def read_by(transcript: Transcript, told: Callable[[], None]) -> Transcript:
    """The transcript, which tells when its messages are indexed."""
    chain = Read(transcript.chain)
    reading = replace(transcript, chain=chain)
    assert reading.last_user is not None  # found by reading too, before anything is told
    chain.told = told
    return reading


def searchable(transcript: Transcript, key: StoreKey | None = KEY) -> Searchable:
    return Searchable(key, transcript, range(len(transcript.chain) - 1), list)


async def test_a_search_whose_request_is_cancelled_goes_on_alone_in_its_thread() -> None:
    recall, begun, entered = Recall(), Signal(), threading.Event()
    inside: list[str] = []

    def first() -> None:
        if "first" not in inside:
            inside.append("first")
            begun.set()
            entered.wait(OVERLAP)
            inside.append("first is done")

    def second() -> None:
        inside.append("second")
        entered.set()

    cancelled = asyncio.create_task(recall.search(searchable(read_by(SAID, first)), "key"))
    await begun.reached()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    other = transcript_of([user("of the pond"), assistant("it is called Bodo"), user("what is it called?")])
    (hit, *_) = await recall.search(searchable(read_by(other, second)), "Bodo")
    assert hit.entry.text == "it is called Bodo"
    assert inside[:3] == ["first", "first is done", "second"]


async def test_what_is_searched_without_a_session_is_read_anew_and_leaves_nothing() -> None:
    recall = Recall()
    reads: list[None] = []
    is_read_whole = []
    for key in (None, None, KEY, KEY):
        (hit, *_) = await recall.search(searchable(read_by(SAID, lambda: reads.append(None)), key), "blue barrel")
        assert hit.entry.text == "behind the blue barrel"
        is_read_whole.append(len(reads) == len(SAID.chain) - 1)
        reads.clear()
    assert is_read_whole == [True, True, True, False]


async def test_the_index_that_was_not_used_for_longest_is_forgotten() -> None:
    recall = Recall()
    reads: list[int] = []
    for number in (*range(MAX_INDEXES), 0, MAX_INDEXES, 0, 1):
        found = searchable(read_by(SAID, partial(reads.append, number)), StoreKey("t", str(number)))
        await recall.search(found, "barrel")
    assert reads[-2:] == [1, 1]
    assert reads.count(0) == len(SAID.chain) - 1


async def test_messages_that_a_client_edits_away_leave_the_index_of_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recall, turns = Recall(), 100
    monkeypatch.setattr("proxy.condensing.recall.MAX_ENTRIES", 3 * turns)
    for edition in range(4):  # three fill the index
        said = [user(f"{edition}: turn {turn} of the walk to the lake") for turn in range(turns)]
        hits = await recall.search(searchable(transcript_of([*said, user("where did the walk go?")])), "lake")
        assert recall._entries() <= 4 * turns
        assert hits[0].entry.text.startswith(f"{edition}: ")


async def test_a_search_adds_only_so_many_entries_the_newest_first_and_later_ones_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recall = Recall()
    monkeypatch.setattr("proxy.condensing.recall.MAX_NEW", 30)
    said = transcript_of([*(user(f"turn {turn} of the walk") for turn in range(100)), user("where did it go?")])
    places = []
    for _ in range(5):
        hits = await recall.search(searchable(said), "walk")
        places.append({hit.entry.place for hit in hits if hit.entry.place >= 0})
    assert places == [set(range(max(100 - 30 * n, 0), 100)) for n in (1, 2, 3, 4, 5)]


async def test_of_one_long_message_a_search_adds_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.condensing.recall.MAX_NEW", 3)
    long = "".join(f"{part:04} turns of the walk to the lake. " for part in range(1_000))
    (hit, *_) = await Recall().search(searchable(transcript_of([user(long), user("where?")])), "walk lake")
    assert hit.entry.parts > 50
    assert hit.entry.part < 3


async def test_an_index_holds_the_newest_of_a_history_that_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    recall = Recall()
    monkeypatch.setattr("proxy.condensing.recall.MAX_ENTRIES", 40)
    said = transcript_of([*(user(f"turn {turn} of the walk") for turn in range(100)), user("where did it go?")])
    for _ in range(3):
        assert {hit.entry.place for hit in await recall.search(searchable(said), "walk")} == set(range(70, 100))


async def test_without_room_for_an_index_nothing_is_read_and_nothing_found() -> None:
    recall, reads = Recall(), list[None]()
    for bodies, hits in ((100, 0), (100_000_000, 2)):
        place = Admission(LimitSettings(bodies=bodies), 1, print).place("tenant")
        await place.take()
        asked = searchable(read_by(SAID, lambda: reads.append(None)))._replace(place=place)
        assert len(await recall.search(asked, "blue barrel")) == hits
        assert (len(reads) > 0) == (hits > 0)


def test_all_indexes_together_take_less_than_64_megabytes() -> None:
    random, entries = Random(1), 400
    said = transcript_of([user(english(random, 100)[:600]) for _ in range(entries)])
    tracemalloc.start()
    try:
        index = Index()
        for place, message in enumerate(said.chain):
            index.add(message_entries(str(place), message, place))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert MAX_ENTRIES * taken / len(index) < 64 * 1024 * 1024
