"""The heap of the process, where the allocator is glibc's."""

from __future__ import annotations

import ctypes


def use_one_heap() -> None:
    """Has all threads that begin after this share one heap; does nothing where the allocator is not glibc's.

    By default each thread has a heap of its own, up to eight for each core. What the caches keep lies between what was
    freed, in every heap, and the process grows by tens of megabytes that nothing uses. Python's threads take turns
    anyway, so one heap costs them nothing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(-8, 1)  # M_ARENA_MAX
