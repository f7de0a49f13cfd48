"""The stored form of values: whoever writes a document, a record, a block, a fact or a handover compresses it.

A compressed value begins with two bytes: the version of this format, and the codec. Any other value is stored as it is,
so values that are older than compression can still be read. The version byte begins no UTF-8 text; a value that begins
with it by chance is wrapped with the codec that changes nothing.

A value with a codec that this version does not know reads as `NEWER`, a document of a newer version, which every reader
treats as a miss. A value that cannot be decompressed, or that would have more than `MAX_BYTES` bytes, is corrupt.
"""

from __future__ import annotations

import sys
import threading

from proxy.store.base import StoreError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION = 0xC1  # a byte that does not occur in UTF-8
PLAIN, ZSTD = 0, 1

SMALLEST = 1024  # bytes; compressing a smaller value saves too little
MAX_BYTES = 64 * 1024 * 1024  # bytes that one value may decompress to
LEVEL = 3
NEWER = b'{"v":1000000}'


class _Packing(threading.local):
    """One compressor per thread, since creating one takes longer than compressing most values."""

    def __init__(self) -> None:
        self._compressor = zstd.ZstdCompressor(LEVEL)

    def frame(self, data: bytes) -> bytes:
        """`data` as one complete zstd frame."""
        return self._compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)


_packing = _Packing()


def compress(data: bytes) -> bytes:
    """`data` in its stored form: compressed where that makes it smaller."""
    if len(data) >= SMALLEST:
        packed = bytes((VERSION, ZSTD)) + _packing.frame(data)
        if len(packed) < len(data):
            return packed
    return bytes((VERSION, PLAIN)) + data if data[:1] == bytes((VERSION,)) else data


def decompress(stored: bytes) -> bytes:
    """The value in stored form, decompressed; raises `store-corrupt`."""
    if stored[:1] != bytes((VERSION,)):
        return stored
    match stored[1:2]:
        case b"\x00":
            return stored[2:]
        case b"\x01":
            return _decompress_zstd(stored[2:])
    return NEWER


def _decompress_zstd(packed: bytes) -> bytes:
    decompressor = zstd.ZstdDecompressor()
    try:
        data = decompressor.decompress(packed, MAX_BYTES)
    except zstd.ZstdError as error:
        raise StoreError("store-corrupt", f"a compressed value is broken: {error}") from None
    if not decompressor.eof:
        raise StoreError("store-corrupt", f"a compressed value is cut, or larger than {MAX_BYTES} bytes")
    return data
