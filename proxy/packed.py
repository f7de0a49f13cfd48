"""Request bodies that come packed: unpacked to be read, and sent on as they came where nothing is changed.

What the standard library does not unpack is not read at all. A body is unpacked up to the limit of bodies and no
further, so a small one that stands for a huge one is refused before it is there.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable

from proxy.errors import BadRequest, BodyTooLarge
from proxy.headers import first

ENCODING = b"content-encoding"
IN_THREAD = 4 * 1024
"""Bytes of a packed body from which on it is unpacked away from the event loop: they may stand for a thousand times
as many."""
MOST_MEMBERS = 1_000
"""Parts of which a gzip body may consist, one behind another."""
_PIECE = 4 * 1024

_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_PARAM = "Content-Encoding"


def encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """How a body is packed, "" for not at all."""
    name = (first(headers, ENCODING) or "").strip().lower()
    return "" if name == "identity" else name


def is_known(encoding: str) -> bool:
    """Whether such a body can be read."""
    return not encoding or encoding in _WINDOW_BITS


async def unpacked(data: bytes, encoding: str, limit: int) -> bytes:
    """What a packed body stands for; raises `BadRequest` where it is broken, `BodyTooLarge` beyond `limit` bytes."""
    if len(data) < IN_THREAD:
        return _unpacked(data, encoding, limit)
    return await asyncio.to_thread(_unpacked, data, encoding, limit)


def _unpacked(data: bytes, encoding: str, limit: int) -> bytes:
    unpacking = _Unpacking(data, limit)
    try:
        for _ in range(MOST_MEMBERS):
            unpacking.member(_window_bits(data, encoding))
            if unpacking.is_over:
                return b"".join(unpacking.parts)
    except zlib.error as error:
        raise BadRequest(f"The request body is not valid {encoding}: {error}.", param=_PARAM) from None
    except EOFError:
        raise BadRequest(f"The request body ends in the middle of its {encoding}.", param=_PARAM) from None
    raise BadRequest(f"The request body has more than {MOST_MEMBERS:,} parts in {encoding}.", param=_PARAM)


class _Unpacking:
    """A body on its way, in small pieces: what follows a member is copied with each."""

    def __init__(self, data: bytes, limit: int) -> None:
        self.parts: list[bytes] = []
        self._data = data
        self._limit = limit
        self._at = self._size = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing follows but zeros, which are padding."""
        at, data = self._at, self._data
        return at == len(data) or (data[at] == 0 and not data[at:].strip(b"\0"))

    def member(self, bits: int) -> None:
        """Unpacks the next member; raises `zlib.error`, `EOFError` where it has no end, and `BodyTooLarge`."""
        inflating = zlib.decompressobj(bits)
        while not inflating.eof:
            piece = self._data[self._at : self._at + _PIECE]
            if not piece:
                raise EOFError
            self._at += len(piece)
            self._keep(inflating.decompress(piece, self._limit + 1 - self._size))
        self._at -= len(inflating.unused_data)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise BodyTooLarge(f"The request body is larger than {self._limit:,} bytes when it is unpacked.")
        if part:
            self.parts.append(part)


def _window_bits(data: bytes, encoding: str) -> int:
    """What zlib is told of an encoding; many send `deflate` without the head that it should have."""
    if encoding == "deflate" and not (len(data) > 1 and data[0] & 15 == 8 and (data[0] * 256 + data[1]) % 31 == 0):
        return -_WINDOW_BITS["deflate"]
    return _WINDOW_BITS[encoding]
