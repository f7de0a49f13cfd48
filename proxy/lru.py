"""A bounded memory: values by key, of which the one that was left alone for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, ItemsView
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most `most` values; a look (`get`) is no use, `put` and `use` are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value at a key, None where there is none."""
        return self._kept.get(key)

    def use(self, key: K, make: Callable[[], V]) -> V:
        """The value at a key, made where there is none."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        value = make()
        self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Keeps a value in place of the one before; where that is one too many, the oldest goes."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def items(self) -> ItemsView[K, V]:
        """Keys and values, the oldest first."""
        return self._kept.items()
