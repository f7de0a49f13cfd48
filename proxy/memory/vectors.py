"""Vectors: what texts mean, as an embedding model says, kept in memory for the sessions that were used last.

A vector is kept by a digest of its text, so that what is said twice, or quoted in a card, is asked for once. Vectors
are of length one, in float32; beside each stand the signs of its numbers, as the bits of one integer. Of many vectors
only those whose signs agree most with the query's are compared in full.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import sqrt
from operator import mul
from typing import NamedTuple

from proxy.store.base import SessionKey
from strategies.memory.ranking import Hit

MOST_BYTES = 64 * 1024 * 1024
MOST_SESSIONS = 1_000
FLOAT_BYTES = 4
COMPARED = 200
"""Vectors that are compared in full: about ten milliseconds in a thread."""


class Vector(NamedTuple):
    """A vector of length one, and a bit for each number that is positive."""

    values: array[float]
    signs: int


class SessionVectors:
    """The vectors of one session, the tokens that they have cost, and the bytes that they take, about.

    `untold` are those of the tokens that the session's totals do not have yet.
    """

    def __init__(self) -> None:
        self.tokens = self.untold = self.size = 0
        self._known: dict[bytes, Vector] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, text: str) -> Vector | None:
        """The vector of a text."""
        return self._known.get(_digest(text))

    def unknown(self, texts: Iterable[str]) -> list[str]:
        """The texts that have no vector yet, each once."""
        return [text for text in dict.fromkeys(texts) if _digest(text) not in self._known]

    def spend(self, tokens: int) -> None:
        """Adds what a call has cost."""
        self.tokens += tokens
        self.untold += tokens

    def put(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Keeps the vectors of texts that have none. May run in a thread."""
        for text, values in zip(texts, vectors, strict=True):
            self._known[_digest(text)] = vector_of(values)
            self.size += len(values) * FLOAT_BYTES

    def closeness(self, query: Vector, hits: Sequence[Hit]) -> list[tuple[Hit, float]]:
        """How close what hits say is to a query, as a cosine, for those that have a vector of its kind."""
        known = [(hit, vector) for hit in hits if (vector := self.get(hit.entry.text)) is not None]
        same = [(hit, vector) for hit, vector in known if len(vector.values) == len(query.values)]
        if len(same) > COMPARED:
            same.sort(key=lambda each: (each[1].signs ^ query.signs).bit_count())
        return [(hit, sum(map(mul, vector.values, query.values))) for hit, vector in same[:COMPARED]]


class Vectors:
    """The vectors of the sessions that were used last; one per app."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[SessionKey, SessionVectors] = OrderedDict()

    def of(self, key: SessionKey) -> SessionVectors:
        """The vectors of a session, which is used by that."""
        found = self._sessions.setdefault(key, SessionVectors())
        self._sessions.move_to_end(key)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return found

    def has_room(self) -> bool:
        """Whether more may be kept, once those that were not used for the longest time are forgotten."""
        while len(self._sessions) > 1 and self._size() > self._most_bytes:
            self._sessions.popitem(last=False)
        return self._size() <= self._most_bytes

    def _size(self) -> int:
        return sum(each.size for each in self._sessions.values())


def vector_of(values: Sequence[float]) -> Vector:
    """The vector with these numbers, at length one; one without any direction stays as it is."""
    length = sqrt(sum(each * each for each in values)) or 1.0
    signs = "".join("1" if each > 0 else "0" for each in values)
    return Vector(array("f", [each / length for each in values]), int(signs, 2))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
