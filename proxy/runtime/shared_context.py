"""A context manager that many requests share; `contextlib.contextmanager` would make a generator for each."""

from __future__ import annotations

from collections.abc import Callable


class SharedContext:
    """A context that may be entered many times at once; calls `on_enter` and `on_exit` each time."""

    def __init__(self, on_enter: Callable[[], None], on_exit: Callable[[], None]) -> None:
        self._on_enter = on_enter
        self._on_exit = on_exit

    def __enter__(self) -> None:
        self._on_enter()

    def __exit__(self, *_: object) -> None:
        self._on_exit()
