"""Work that is too long for the event loop goes to a thread, and what is short does not pay for one.

Planning is pure Python: in a thread it takes as long, but others get their turn between its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE = 120
"""Messages from which on planning may take more than some milliseconds."""
MESSAGE_TOKENS = 250
"""Tokens that a message is taken to have: a longer one counts for several."""


def loaded(messages: int, tokens: int) -> int:
    """How many messages work has to do with that reads their texts: few long ones are as much as many."""
    return max(messages, tokens // MESSAGE_TOKENS)


async def offloaded(messages: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, which takes time in proportion to so many messages."""
    if messages < LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
