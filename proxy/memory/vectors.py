"""The vectors of texts, kept in memory for the sessions that were used last.

A vector is kept under a digest of its text, so that a text that occurs twice, or is quoted in a card, is embedded once.
Vectors have length one, in float32. Each comes with the signs of its numbers as the bits of one integer: of many
vectors only those whose signs agree most with the query's are compared in full.
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

MAX_BYTES = 64 * 1024 * 1024
MAX_SESSIONS = 1_000
FLOAT_BYTES = 4
COMPARED = 200
"""How many vectors are compared in full; it takes about ten milliseconds in a thread."""


class Vector(NamedTuple):
    """A vector of length one, and a bit for each number that is positive."""

    values: array[float]
    signs: int


class SessionVectors:
    """The vectors of one session.

    `tokens` is what they have cost, `unreported` the part of it that is not in the session's totals yet, and `size`
    about how many bytes they take.
    """

    def __init__(self) -> None:
        self.tokens = self.unreported = self.size = 0
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
        """Adds the cost of a call."""
        self.tokens += tokens
        self.unreported += tokens

    def put(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Keeps the vectors of texts that have none. May run in a thread."""
        for text, values in zip(texts, vectors, strict=True):
            self._known[_digest(text)] = vector_of(values)
            self.size += len(values) * FLOAT_BYTES

    def closeness(self, query: Vector, hits: Sequence[Hit]) -> list[tuple[Hit, float]]:
        """The cosine between a query and each hit that has a vector of the same length."""
        known = [(hit, vector) for hit in hits if (vector := self.get(hit.entry.text)) is not None]
        same = [(hit, vector) for hit, vector in known if len(vector.values) == len(query.values)]
        if len(same) > COMPARED:
            same.sort(key=lambda each: (each[1].signs ^ query.signs).bit_count())
        return [(hit, sum(map(mul, vector.values, query.values))) for hit, vector in same[:COMPARED]]


class Vectors:
    """The vectors of the sessions that were used last; one per app."""

    def __init__(self, most_bytes: int = MAX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[SessionKey, SessionVectors] = OrderedDict()

    def of(self, key: SessionKey) -> SessionVectors:
        """The vectors of a session; counts as a use of them."""
        found = self._sessions.setdefault(key, SessionVectors())
        self._sessions.move_to_end(key)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return found

    def make_room(self) -> bool:
        """Drops the least recently used sessions beyond the bound. Returns whether more vectors may be kept."""
        while len(self._sessions) > 1 and self._size() > self._most_bytes:
            self._sessions.popitem(last=False)
        return self._size() <= self._most_bytes

    def _size(self) -> int:
        return sum(each.size for each in self._sessions.values())


def vector_of(values: Sequence[float]) -> Vector:
    """The vector of these numbers, scaled to length one; one of zeros stays as it is."""
    length = sqrt(sum(each * each for each in values)) or 1.0
    signs = "".join("1" if each > 0 else "0" for each in values)
    return Vector(array("f", [each / length for each in values]), int(signs, 2))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
