"""A context that every request enters: one object for all, where `contextmanager` makes a generator each time."""

from __future__ import annotations

from collections.abc import Callable


class Holding:
    """A context in which many may be at the same time; each has `begun` called, and `ended` when it leaves."""

    def __init__(self, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self._begun = begun
        self._ended = ended

    def __enter__(self) -> None:
        self._begun()

    def __exit__(self, *_: object) -> None:
        self._ended()
