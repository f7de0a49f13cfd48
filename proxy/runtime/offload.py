"""Runs long work in a thread and short work on the event loop, which is cheaper.

Planning is pure Python, so it takes as long in a thread, but the event loop gets its turn between its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE = 120
"""From this many messages on, planning may take more than some milliseconds."""
MESSAGE_TOKENS = 250
"""A message with more tokens than this counts as several."""


def message_load(messages: int, tokens: int) -> int:
    """The load of work that reads messages, as a number of messages; a long message counts as several."""
    return max(messages, tokens // MESSAGE_TOKENS)


async def offload(messages: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, whose time is in proportion to `messages`."""
    if messages < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
