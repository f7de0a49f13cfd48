"""Pins as a session stores them: marks, which last and need no revision of the document.

`pin:NUMBER:NODE` pins the message at a chain digest, `unpin:NUMBER:NODE` takes that back. A message that is pinned
again gets a new number. So replicas that write at the same time never undo each other's work, and earlier versions keep
what they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_MARK = re.compile(r"pin:([0-9]{1,9}):((?:[0-9a-f]{2})+)")
_UNPINNED = "un"


class Pin(NamedTuple):
    """A message that a person pinned."""

    number: int
    """Pins count from 1; of two, the one with the smaller number was made first."""
    node: bytes
    """The chain digest after the message."""
    is_live: bool = True
    """Whether it was not taken back."""

    @property
    def id(self) -> str:
        """The id that operators see: the same for every pin of one message."""
        return f"p{self.node.hex()[:16]}"

    @property
    def mark(self) -> str:
        return f"pin:{self.number}:{self.node.hex()}"

    @property
    def mark_of_unpinning(self) -> str:
        return _UNPINNED + self.mark


def pins_in(marks: frozenset[str]) -> tuple[Pin, ...]:
    """All pins among the marks of a session, those that were taken back too, in the order in which they were made."""
    found = (match for mark in marks if (match := _MARK.fullmatch(mark)))
    return tuple(sorted(Pin(int(each[1]), bytes.fromhex(each[2]), _UNPINNED + each[0] not in marks) for each in found))


def next_pin(pins: Iterable[Pin], node: bytes) -> Pin:
    """The pin of a message: the one that it has, else a new one."""
    pins = tuple(pins)
    number = 1 + max((each.number for each in pins), default=0)
    return next((each for each in pins if each.is_live and each.node == node), Pin(number, node))
