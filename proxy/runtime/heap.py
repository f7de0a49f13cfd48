"""Keeps the memory that glibc's allocator takes from the system near what is in use.

By default each thread has a heap of its own, up to eight for each core, and once a large block was freed, blocks as
large come from these heaps too. What the caches keep then stands between what was freed, and a process that reads long
histories grows by some megabytes a minute that nothing uses. Python's threads take turns anyway, so one heap costs them
nothing; a block that is mapped apart costs its page faults, about half a millisecond for a history of 400 kB.
"""

from __future__ import annotations

import ctypes

LARGE = 128 * 1024
"""Bytes from which on a block is mapped apart, and given back to the system when it is freed."""
MOST_AT_END = 16 * 1024 * 1024
"""Bytes that may be free at the end of the heap before they are given back."""
_OPTIONS = {-8: 1, -3: LARGE, -1: MOST_AT_END}  # glibc's M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def bound_heap() -> None:
    """Sets the allocator's options for this process; does nothing where the allocator is another."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option, value in _OPTIONS.items():
            set_option(option, value)
