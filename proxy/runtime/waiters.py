"""Waiters: who waits for a piece of work that was begun for nobody.

Such work may have to stand back for long. Once a client waits for what comes of it, it is that client's work: what it
still asks for goes as a client's request does, for as long as somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waiters:
    """Those who wait for one piece of work, by their number."""

    def __init__(self) -> None:
        self._count = 0
        self._told: set[Callable[[], None]] = set()

    @property
    def any(self) -> bool:
        """Whether somebody waits."""
        return self._count > 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Holds while one more waits."""
        self._count += 1
        for tell in tuple(self._told):
            tell()
        try:
            yield
        finally:
            self._count -= 1

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Has `tell` called whenever somebody begins to wait, while this holds."""
        self._told.add(tell)
        try:
            yield
        finally:
            self._told.discard(tell)


NOBODY = Waiters()
"""Those who wait for work that nobody can wait for: there are never any."""
