"""Shared by the tests of stores: data to save, and calls that are cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from proxy.store.base import Write

TTL = 600
ALL_BYTES = bytes(range(256))


def write(meta: bytes = b"meta", revision: int = 0, **parts: Any) -> Write:
    return Write(meta, revision, **{"ttl": TTL, **parts})


async def yields(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_after(count: int, call: Coroutine[Any, Any, Any]) -> None:
    """Start a call and cancel it after the loop has turned `count` times."""
    task = asyncio.create_task(call)
    await yields(count)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
