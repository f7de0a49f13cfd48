"""Garbage: when the interpreter looks through all that lives.

A full collection takes tens of milliseconds with the messages that are kept, and nobody is served meanwhile. There is
little for it to find: what a request leaves is free when it is over (`Decision.let_go`), but for what failed or broke
off. So what is there at the start is left out for good, and a full collection waits until no request is under way, or
until the last one is long ago. Collections of what is young go on as ever; they take little.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PAUSE = 10.0  # seconds between two looks whether it is quiet
MOST_PUT_OFF = 60  # looks after which a collection is made though it is not
_NEVER = 1_000_000_000


@asynccontextmanager
async def tended(is_quiet: Callable[[], bool], pause: float = PAUSE) -> AsyncIterator[None]:
    """Full collections of this process are made as said above; one at a time, for a process that serves one app."""
    young, middle, old = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collecting(is_quiet, pause))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def _collecting(is_quiet: Callable[[], bool], pause: float) -> None:
    put_off = 0
    while True:
        await asyncio.sleep(pause)
        if is_quiet() or put_off >= MOST_PUT_OFF:
            gc.collect()
            put_off = 0
        else:
            put_off += 1
