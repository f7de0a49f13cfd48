"""Steps of long work on the event loop: in each turn of the loop one request goes on, however many there are."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def next_step() -> None:
    """Lets everything else that is ready run, and then waits until no other request is in a step."""
    lock = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with lock:
        await asyncio.sleep(0)
