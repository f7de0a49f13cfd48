"""What encryption adds to a stored turn, in processor time: too little to be seen in that of the whole proxy.

First a proxy serves conversations, and its processor time tells what a stored turn takes. Then the store operations of
a turn (load, and save with a new block and an item of the journal) are repeated on the sessions that it has kept, in
memory, in plain and encrypted by turns. The least of the rounds counts, because other work only ever adds.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from time import process_time
from typing import Any

from bench.processes import condenser, store_url, stub
from bench.scale import TURNS, WINDOW, Kept, kept_in
from bench.traffic import Job, sent
from proxy.store import open_store
from proxy.store.base import Store, StoreKey, Write

SESSIONS = 16
KEYS = {"plain": (), "encrypted": (bytes(range(32)),)}
_LIFE = 3_600
_RECORD = bytes(64)  # of a request


def measure(rounds: int = 200) -> list[dict[str, Any]]:
    """One row; half a minute."""
    with ExitStack() as stack:
        upstream, url = stack.enter_context(stub()), store_url("sqlite", stack) or ""
        job = Job("medium", named=True, window=WINDOW, turns=TURNS, connections=SESSIONS, least=TURNS)
        with condenser(upstream.port, url) as served:
            sent(Job("medium", port=served.port))  # the first request is not warm
            before = served.cpu
            done = sent(replace(job, port=served.port, first=SESSIONS))
            turn = (served.cpu - before) * 1_000_000 / len(done.completes)
        kept = asyncio.run(kept_in(url))
    least = asyncio.run(_least(kept, rounds))
    added = least["encrypted"] - least["plain"]
    shares = {"added": added, "a stored turn": turn, "share": f"{added / turn:.1%}"}
    return [{"CPU µs of": "the store operations of a turn", **least, **shares}]


async def _least(kept: list[Kept], rounds: int) -> dict[str, float]:
    stores = {kind: await open_store("memory://", keys=keys) for kind, keys in KEYS.items()}
    least = dict.fromkeys(KEYS, inf)
    try:
        for number in range(rounds):
            for kind, store in stores.items():
                least[kind] = min(least[kind], await _turns(store, kept, number))
    finally:
        for store in stores.values():
            await store.close()
    return least


async def _turns(store: Store, kept: list[Kept], number: int) -> float:
    """Microseconds of a turn, one of each session."""
    keys = [StoreKey("tenant", f"{number}-{place}") for place in range(len(kept))]
    for key, session in zip(keys, kept, strict=True):
        await store.save(key, Write(session.meta, 0, _LIFE))
        for record in session.records.items():
            await store.put_record(key, *record, _LIFE)
    began = process_time()
    for key, session in zip(keys, kept, strict=True):
        snapshot = await store.load(key)
        assert snapshot is not None
        newest = dict(list(session.blocks.items())[:1])
        await store.save(key, Write(snapshot.meta, snapshot.revision, _LIFE, newest, ["digest"], _RECORD))
    return (process_time() - began) * 1_000_000 / len(kept)
