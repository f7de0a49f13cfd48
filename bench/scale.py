"""What many sessions cost the store: bytes, operations of a request, and how both grow with what is stored.

First a real proxy serves conversations, and the store tells what it took for each request and keeps of each. Then the
sessions that it has kept are copied under other tenants and names until there are as many as are wanted; after each
step the store operations of a turn (`find`, `load`, `save` with a new block) are timed on sessions drawn at random, as
a proxy does them. A cost that grows shows as a ratio to the first step.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from bench.processes import Served, condenser, store_url, stub
from bench.traffic import MODEL, Job, messages, sent
from proxy.protocols.chat import ChatCounter
from proxy.store import open_store
from proxy.store.base import Store, StoreKey, Write
from proxy.tokens.counter import Tokenizers
from tests.support.redis_server import asking

WINDOW = 12_000
"""Tokens. A conversation of the medium payload is condensed in it, and goes on."""
SERVED = 48  # conversations that a real proxy serves
TURNS = 8  # requests of each
SESSIONS = (1_000, 10_000, 100_000)
SAMPLE = 400  # turns that are timed at each step
TENANTS = 1_000
AT_ONCE = 32
ASKED = ("commands of a request", "kB of a request", "its ms of CPU")
_DAY = 24 * 3600


class Kept(NamedTuple):
    """A session as the store has it, to be written again under other names."""

    meta: bytes
    records: dict[str, bytes]
    blocks: dict[str, bytes]


def measure(stores: Sequence[str] = ("sqlite", "redis"), sessions: Sequence[int] = SESSIONS) -> list[dict[str, Any]]:
    """A row for each store and number of sessions; five minutes with the defaults."""
    rows: list[dict[str, Any]] = []
    for name in stores:
        with ExitStack() as stack:
            url = store_url(name, stack)
            if url is None:
                continue
            upstream = stack.enter_context(stub())
            empty = _bytes_of(url)
            with condenser(upstream.port, url) as served:
                asked = _served(served, url)
            kept = (_bytes_of(url) - empty) / SERVED / _tokens()
            fixed = {"store": name, "kB per 1,000 tokens": kept, **asked}
            rows.extend({**fixed, **row} for row in asyncio.run(_grown(url, sessions)))
    return rows


def _served(served: Served, url: str) -> dict[str, float]:
    """Serves the conversations; what a request asked of a Redis, by the titles of columns; 0 if unknown."""
    before = _told(url)
    job = Job("medium", named=True, window=WINDOW, turns=TURNS, connections=SERVED, least=TURNS, port=served.port)
    sent(job)
    return {title: (after - before[title]) / SERVED / TURNS for title, after in _told(url).items()}


def _told(url: str) -> dict[str, float]:
    """What a Redis has done so far, as it tells: commands (those of scripts too), kilobytes read, ms of CPU."""
    if not url.startswith("redis"):
        return dict.fromkeys(ASKED, 0.0)
    with asking(_port(url)) as redis:
        told = redis.info("stats") | redis.info("cpu")
    cpu = told["used_cpu_user"] + told["used_cpu_sys"]
    return dict(
        zip(ASKED, (told["total_commands_processed"], told["total_net_input_bytes"] / 1_000, cpu * 1_000), strict=True)
    )


def _bytes_of(url: str) -> int:
    """What the store takes: the memory of a Redis, the files of SQLite."""
    if url.startswith("redis"):
        with asking(_port(url)) as redis:
            return int(redis.info("memory")["used_memory"])
    path = Path(url.removeprefix("sqlite:///"))
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def _grown(url: str, sessions: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of sessions: what one takes, and how long the operations of a turn take."""
    store = await open_store(url)
    try:
        before = _bytes_of(url)
        kept = [await _kept(store, key) for key in await store.keys()]
        rows: list[dict[str, Any]] = []
        numbers, drawn = iter(range(max(sessions))), random.Random(7)
        stored = 0
        for wanted in sessions:
            await _fill(store, kept, numbers, wanted - stored)
            stored = wanted
            times = await _turns(store, kept, stored, drawn)
            size, turn = (_bytes_of(url) - before) / stored / 1_000, median(times) * 1_000
            worst = sorted(times)[-len(times) // 100] * 1_000
            ratio = turn / rows[0]["turn, ms"] if rows else 1.0
            rows.append(
                {"sessions": stored, "kB of a session": size, "turn, ms": turn, "worst of 100": worst, "ratio": ratio}
            )
        return rows
    finally:
        await store.close()


async def kept_in(url: str) -> list[Kept]:
    """The sessions of a store."""
    store = await open_store(url)
    try:
        return [await _kept(store, key) for key in await store.keys()]
    finally:
        await store.close()


async def _kept(store: Store, key: StoreKey) -> Kept:
    snapshot = await store.load(key)
    assert snapshot is not None
    return Kept(snapshot.meta, dict(snapshot.records), await store.blocks(key))


def _tokens() -> float:
    """The tokens of what a conversation of the load has said at its end, counted as one text."""
    counter = Tokenizers().for_model(MODEL, ChatCounter)
    return float(sum(counter.message(each) for each in messages("medium")))


def _key(number: int) -> StoreKey:
    return StoreKey(f"t{number % TENANTS:06d}", f"s{number:012d}")


def _digest(number: int) -> str:
    return f"{number * 2_654_435_761 % 2**32:08x}{number:024x}"


async def _fill(store: Store, kept: Sequence[Kept], numbers: Iterator[int], more: int) -> None:
    async def fill() -> None:
        for _ in range(more // AT_ONCE + 1):
            number = next(numbers, None)
            if number is None:
                return
            key, session = _key(number), kept[number % len(kept)]
            await store.save(key, Write(session.meta, 0, _DAY, session.blocks, [_digest(number)]))
            for record in session.records.items():
                await store.put_record(key, *record, _DAY)

    await asyncio.gather(*(fill() for _ in range(AT_ONCE)))


async def _turns(store: Store, kept: Sequence[Kept], stored: int, drawn: random.Random) -> list[float]:
    """Seconds that the store operations of a turn took, on sessions drawn at random, one after the other."""
    times = []
    for turn, number in zip(count(), (drawn.randrange(stored) for _ in range(SAMPLE)), strict=False):
        key, began = _key(number), perf_counter()
        await store.find(key.tenant, [_digest(number), _digest(number + stored)])
        snapshot = await store.load(key)
        assert snapshot is not None
        block = {f"b{stored}-{turn}": next(iter(kept[number % len(kept)].blocks.values()))[:2_000]}
        await store.save(key, Write(snapshot.meta, snapshot.revision, _DAY, block, [_digest(number)]))
        times.append(perf_counter() - began)
    return times
