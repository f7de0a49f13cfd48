"""What a person asks of a session, as it is stored: marks, which last and need no revision of the document.

`pin:NUMBER:NODE` pins the message at a chain digest, and `condense:NUMBER:BRANCH` wants a branch condensed.
`unpin:NUMBER:NODE` and `condensed:NUMBER:BRANCH` say that this is over; what is asked for again has a new number. So
replicas that write at the same time never undo each other's work, and earlier versions keep what they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_PIN = re.compile(r"pin:([0-9]{1,9}):((?:[0-9a-f]{2})+)")
_WISH = re.compile(r"condense:([0-9]{1,9}):([a-z0-9]+)")


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
    def mark_of_end(self) -> str:
        return f"un{self.mark}"


class Wish(NamedTuple):
    """A person's wish that the next request of a branch be condensed."""

    number: int
    """Wishes count from 1."""
    branch: str
    """The name of the branch."""
    is_live: bool = True
    """Whether no request has tried it yet."""

    @property
    def mark(self) -> str:
        return f"condense:{self.number}:{self.branch}"

    @property
    def mark_of_end(self) -> str:
        return f"condensed:{self.number}:{self.branch}"


def pins_in(marks: frozenset[str]) -> tuple[Pin, ...]:
    """All pins among the marks of a session, those that were taken back too, in the order in which they were made."""
    found = (Pin(int(each[1]), bytes.fromhex(each[2])) for each in map(_PIN.fullmatch, marks) if each)
    return tuple(sorted(pin._replace(is_live=pin.mark_of_end not in marks) for pin in found))


def wishes_in(marks: frozenset[str]) -> tuple[Wish, ...]:
    """All wishes among the marks of a session, those that were tried too."""
    found = (Wish(int(each[1]), each[2]) for each in map(_WISH.fullmatch, marks) if each)
    return tuple(sorted(wish._replace(is_live=wish.mark_of_end not in marks) for wish in found))


def pin_of(node: bytes, pins: Iterable[Pin]) -> Pin:
    """The pin of a message: the one that it has among `pins`, else a new one."""
    pins = tuple(pins)
    return next((each for each in pins if each.is_live and each.node == node), Pin(_next_number(pins), node))


def wish_for(branch: str, wishes: Iterable[Wish]) -> Wish:
    """The wish for a branch: the one that it has among `wishes`, else a new one."""
    wishes = tuple(wishes)
    return next((each for each in wishes if each.is_live and each.branch == branch), Wish(_next_number(wishes), branch))


def _next_number(known: Iterable[Pin | Wish]) -> int:
    return 1 + max((each.number for each in known), default=0)
