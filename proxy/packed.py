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
IN_THREAD = 64 * 1024
"""Bytes of a packed body from which on it is unpacked away from the event loop."""

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
    parts: list[bytes] = []
    while data:
        inflating = zlib.decompressobj(_WINDOW_BITS[encoding])
        try:
            parts.append(inflating.decompress(data, limit + 1 - sum(map(len, parts))))
        except zlib.error as error:
            raise BadRequest(f"The request body is not valid {encoding}: {error}.", param=_PARAM) from None
        if sum(map(len, parts)) > limit:
            raise BodyTooLarge(f"The request body is larger than {limit:,} bytes when it is unpacked.")
        if not inflating.eof:
            raise BadRequest(f"The request body ends in the middle of its {encoding}.", param=_PARAM)
        data = inflating.unused_data  # of gzip any number of members may follow one another
    return b"".join(parts)
