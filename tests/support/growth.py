"""How work grows with its input, told on any machine: by the ratio of two lengths.

Four times a length takes 4 times as long where work is in proportion to it, and 16 times where it is in proportion to
its square: that would take a hundred times `UNNOTICED` here, so it is far above what a clock is exact to on a machine
of any speed. The clock is that of the thread's own work; where it was disturbed, by a collection of garbage say, the
least of several measurements clears the work.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LENGTH = 8_000
UNNOTICED = 0.0005
"""Seconds: what is read in less is not in proportion to the square of `LENGTH`."""
MOST = 8
"""How many times as long four times the length may take: half way, in ratios, between 4 and 16."""
TRIES = 4


def grows_too_fast(read: Callable[[T], object], made: Callable[[int], T]) -> bool:
    """Whether reading what is `made` of a length takes out of proportion to the length."""
    short, long = made(LENGTH // 4), made(LENGTH)
    taken = _seconds(read, long)
    if taken < UNNOTICED:
        return False
    base = _seconds(read, short)
    for _ in range(TRIES):
        if taken <= MOST * base:
            return False
        base, taken = min(base, _seconds(read, short)), min(taken, _seconds(read, long))
    return True


def _seconds(read: Callable[[T], object], given: T) -> float:
    began = time.thread_time()
    read(given)
    return time.thread_time() - began
