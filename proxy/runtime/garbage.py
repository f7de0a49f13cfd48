"""Schedules full garbage collections for moments when no request is under way.

A full collection takes tens of milliseconds with the messages that are cached, and no request is served meanwhile. It
finds little: what a request allocates is freed when it is over (`Decision.drop_callbacks`), unless it failed or broke
off. So objects that exist at the start are excluded for good, and a full collection waits until no request is under
way, or until the last collection is long ago. Collections of young objects go on as usual; they take little time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PAUSE = 10.0  # seconds between two checks whether a collection may run
MOST_PUT_OFF = 60  # checks after which a collection runs even if requests are under way
_NEVER = 1_000_000_000


@asynccontextmanager
async def scheduled_collections(is_quiet: Callable[[], bool], pause: float = PAUSE) -> AsyncIterator[None]:
    """Runs this process's full collections as described above, while it holds; for a process that serves one app."""
    young, middle, old = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collect_when_quiet(is_quiet, pause))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def _collect_when_quiet(is_quiet: Callable[[], bool], pause: float) -> None:
    put_off = 0
    while True:
        await asyncio.sleep(pause)
        if is_quiet() or put_off >= MOST_PUT_OFF:
            gc.collect()
            put_off = 0
        else:
            put_off += 1
