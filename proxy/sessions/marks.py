"""What a person asks of a session, as it is stored: marks, which last and need no revision of the document.

`pin:NUMBER:NODE` pins the message at a chain digest, and `condense:NUMBER:BRANCH` wants a branch condensed.
`unpin:NUMBER:NODE` and `condensed:NUMBER:BRANCH` say that this is over; what is asked for again has a new number. So
replicas that write at the same time never undo each other's work, and earlier versions keep what they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

PIN, CONDENSE = "pin", "condense"
_ENDS = {PIN: "unpin", CONDENSE: "condensed"}
_MARKS = {
    PIN: re.compile(r"pin:([0-9]{1,9}):((?:[0-9a-f]{2})+)"),
    CONDENSE: re.compile(r"condense:([0-9]{1,9}):([a-z0-9]+)"),
}


class Wish(NamedTuple):
    """A person's wish that a message be pinned, or that the next request of a branch be condensed."""

    number: int
    """Wishes of one kind count from 1; the one with the smaller number was made first."""
    what: str
    """The chain digest after the message, in hex, or the name of the branch."""
    is_live: bool = True
    """Whether the message was not unpinned, or no request has tried to condense the branch yet."""
    kind: str = PIN

    @property
    def node(self) -> bytes:
        """The chain digest after the message."""
        return bytes.fromhex(self.what)

    @property
    def id(self) -> str:
        """The id that operators see: the same for every pin of one message."""
        return f"p{self.what[:16]}"

    @property
    def mark(self) -> str:
        return f"{self.kind}:{self.number}:{self.what}"

    @property
    def mark_of_end(self) -> str:
        return f"{_ENDS[self.kind]}:{self.number}:{self.what}"


def wishes_in(marks: frozenset[str], kind: str) -> tuple[Wish, ...]:
    """All wishes of a kind among the marks of a session, also those that are over, in the order they were made."""
    found = (Wish(int(each[1]), each[2], kind=kind) for each in map(_MARKS[kind].fullmatch, marks) if each)
    return tuple(sorted(wish._replace(is_live=wish.mark_of_end not in marks) for wish in found))


def wish_for(what: str, kind: str, known: Sequence[Wish]) -> Wish:
    """The live wish for something among the `known` ones of its kind, else a new one."""
    number = 1 + max((each.number for each in known), default=0)
    return next((each for each in known if each.is_live and each.what == what), Wish(number, what, kind=kind))
