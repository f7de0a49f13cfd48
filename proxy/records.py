"""Records of condensations as this process has read them.

A record never changes, so it is decoded and checked once; those that were left alone for longest are forgotten when all
of them together exceed a number of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from hashlib import blake2b
from typing import NamedTuple

from proxy.store.codec import decode_condensation
from strategies.core.condensation import Condensation

MOST_BYTES = 16 * 1024 * 1024


class _Read(NamedTuple):
    condensation: Condensation | None
    size: int


class Records:
    """Reads records; one per app."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._read: OrderedDict[bytes, _Read] = OrderedDict()
        self._size = 0

    def condensation(self, data: bytes, *, standing: bool) -> Condensation | None:
        """The condensation in a record, None where a newer version wrote it; raises one of `UNREADABLE`."""
        name = blake2b(data, digest_size=16).digest()
        read = self._read.get(name)
        if read is None:
            read = _Read(decode_condensation(data, standing=standing), len(data))
            self._keep(name, read)
        self._read.move_to_end(name)
        found = read.condensation
        return found if found is None or found.standing is standing else replace(found, standing=standing)

    def _keep(self, name: bytes, read: _Read) -> None:
        self._read[name] = read
        self._size += read.size
        while self._size > self._most_bytes and len(self._read) > 1:
            _, oldest = self._read.popitem(last=False)
            self._size -= oldest.size
