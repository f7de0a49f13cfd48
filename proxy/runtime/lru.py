"""A bounded cache that drops the least recently used values."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(OrderedDict[K, V]):
    """A cache of values whose sizes (1 by default) add up to at most `most`; the newest value is always kept.

    `put` and `use` count as uses; reading does not. A value that grows must be put again with its new size.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._sizes: dict[K, int] = {}  # only those other than 1
        self._size = 0

    def use(self, key: K) -> V | None:
        """The value of a key, None if there is none; counts as a use."""
        if (value := self.get(key)) is not None:
            self.move_to_end(key)
        return value

    def put(self, key: K, value: V, size: int = 1) -> V:
        """Sets the value of a key and returns it; drops the least recently used values if there is too much."""
        if key in self:
            self.forget(key)
        self[key] = value
        self._size += size
        if size != 1:
            self._sizes[key] = size
        while self._size > self._most and len(self) > 1:
            self.forget(next(iter(self)))
        return value

    def forget(self, key: K) -> None:
        if key in self:
            del self[key]
            self._size -= self._sizes.pop(key, 1)
