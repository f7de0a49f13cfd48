import asyncio
from pathlib import Path

from bench.scale import _grown
from proxy.store import open_store
from proxy.store.base import StoreKey, Write


def test_the_turns_of_copied_sessions_are_timed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"

    async def keep_one() -> None:
        store = await open_store(url)
        await store.save(StoreKey("t", "s"), Write(b"meta", 0, 60, {"block": b"x" * 3_000}))
        await store.close()

    asyncio.run(keep_one())
    few, more = asyncio.run(_grown(url, (5, 50)))
    assert (few["sessions"], more["sessions"], few["ratio"]) == (5, 50, 1.0)
    assert more["kB of a session"] > 3
    assert more["turn, ms"] > 0
