"""Bounded caches that drop the least recently used value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(OrderedDict[K, V]):
    """A cache of at most `most` values; `put` and `use` count as uses, reading does not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def first(self, keys: Iterable[K]) -> V | None:
        """The value of the first of the keys that has one; None if none has."""
        for key in keys:
            if key in self:
                return self[key]
        return None

    def use(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if there is none."""
        if key in self:
            self.move_to_end(key)
            return self[key]
        value = make()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key; drops the least recently used value if there are too many."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class SizedLru(Generic[K, V]):
    """A cache of at most `most` bytes, by the sizes given with the values; the newest value is kept in any case.

    A value that grows must be put again with its new size.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def use(self, key: K) -> V | None:
        """The value of a key, None if there is none; counts as a use."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Sets the value of a key; `size` is in bytes."""
        self.forget(key)
        self._kept[key] = value, size
        self._size += size
        while self._size > self._most and len(self._kept) > 1:
            self._size -= self._kept.popitem(last=False)[1][1]

    def forget(self, key: K) -> None:
        """Drops the value of a key, if there is one."""
        if (kept := self._kept.pop(key, None)) is not None:
            self._size -= kept[1]
