"""Keeps the memory that glibc's allocator takes from the system near what is in use.

By default each thread has a heap of its own, up to eight for each core. What the caches keep lies between what was
freed, in every heap, and the process grows by tens of megabytes that nothing uses. Python's threads take turns anyway,
so one heap costs them nothing.
"""

from __future__ import annotations

import ctypes

_ARENA_MAX = -8
"""The number of glibc's option M_ARENA_MAX."""


def use_one_heap() -> None:
    """Has all threads that begin after this share one heap; does nothing where the allocator is another."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_ARENA_MAX, 1)
