"""Bodies that come packed: content encodings, undone for requests and replies alike.

Undone are those of the standard library; what comes in another one is not read. A request is unpacked up to the limit
of bodies and no further, so a small one that stands for a huge one is refused before it is there.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any

from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.headers import first

ENCODING = b"content-encoding"
IN_THREAD = 4 * 1024
"""Bytes of a packed request from which on it is unpacked away from the event loop: they may stand for a thousand times
as many."""
MOST_MEMBERS = 1_000
"""Members of which a body in gzip may consist, one behind another."""

_PIECE = 4 * 1024  # bytes; what follows a member is copied with each
_GZIP = b"\x1f\x8b"  # a member begins so
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_PARAM = "Content-Encoding"


class Decoder:
    """Undoes a content encoding piece by piece; of gzip any number of members, and nothing behind the last one.

    `bits` are those of zlib, None where there is nothing to undo.
    """

    def __init__(self, bits: int | None) -> None:
        self._bits = bits
        self._inflating: Any = None
        self._members = 0
        self._is_over = False

    @property
    def is_whole(self) -> bool:
        """Whether the body may end here."""
        return self._bits is None or (self._inflating is not None and self._inflating.eof)

    def feed(self, chunk: bytes, most: int = 0) -> bytes:
        """The bytes that a chunk stands for, of each member at most so many, 0 for all; raises `zlib.error`."""
        if self._bits is None:
            return chunk
        if self._is_over or not chunk:
            return b""
        if self._inflating is None:
            self._begin(_form_of(self._bits, chunk))
        data: list[bytes] = [self._inflating.decompress(chunk, most)]
        # What is no part of a member is kept by zlib, so a mark that is cut in two is whole with the next chunk.
        while (rest := self._inflating.unused_data).startswith(_GZIP):
            self._begin(self._bits)
            data.append(self._inflating.decompress(rest, most))
        self._is_over = len(rest) >= len(_GZIP)
        return b"".join(data)

    def _begin(self, bits: int) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise zlib.error(f"more than {MOST_MEMBERS:,} members")
        self._inflating = zlib.decompressobj(bits)


def decoder(encoding: str) -> Decoder | None:
    """What undoes a content encoding; None for one that the standard library does not know."""
    name = _named(encoding)
    if not name:
        return Decoder(None)
    return Decoder(_WINDOW_BITS[name]) if name in _WINDOW_BITS else None


def encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """How a body with these headers is packed, "" for not at all."""
    return _named(first(headers, ENCODING) or "")


async def unpacked(data: bytes, undoing: Decoder, limit: int) -> bytes:
    """What a packed request stands for; raises `BadRequest` where it is broken, `BodyTooLarge` beyond `limit` bytes."""
    if len(data) < IN_THREAD:
        return _unpacked(data, undoing, limit)
    return await asyncio.to_thread(_unpacked, data, undoing, limit)


def _unpacked(data: bytes, undoing: Decoder, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    for at in range(0, len(data), _PIECE):
        try:
            parts.append(undoing.feed(data[at : at + _PIECE], limit + 1 - size))
        except zlib.error as error:
            raise BadRequest(f"The request body cannot be unpacked: {error}.", param=_PARAM) from None
        size += len(parts[-1])
        if size > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes when it is unpacked.")
    if not undoing.is_whole:
        raise BadRequest("The request body ends before all of it is unpacked.", param=_PARAM)
    return b"".join(parts)


def _named(encoding: str) -> str:
    name = encoding.strip().lower()
    return "" if name == "identity" else name


def _form_of(bits: int, beginning: bytes) -> int:
    """What zlib is told of a body that begins so; many send `deflate` without the head that it should have."""
    if bits != zlib.MAX_WBITS or len(beginning) < 2 or int.from_bytes(beginning[:2]) % 31 == 0:
        return bits
    return -bits
