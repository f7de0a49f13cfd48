"""Counts the clients that wait for a piece of background work.

Background work may have to stand back for long. Once a client waits for its result, it is that client's work: its calls
are made as a client's requests are, for as long as somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waiters:
    """How many wait for one piece of work."""

    def __init__(self) -> None:
        self._count = 0
        self._callbacks: set[Callable[[], None]] = set()

    @property
    def any(self) -> bool:
        """Whether anybody waits."""
        return self._count > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context to hold while waiting."""
        self._count += 1
        for callback in tuple(self._callbacks):
            callback()
        try:
            yield
        finally:
            self._count -= 1

    @contextmanager
    def notifying(self, callback: Callable[[], None]) -> Iterator[None]:
        """A context in which `callback` is called whenever somebody begins to wait."""
        self._callbacks.add(callback)
        try:
            yield
        finally:
            self._callbacks.discard(callback)


NOBODY = Waiters()
"""The waiters of work that nobody can wait for; there are never any."""
