"""Content encodings as clients and servers write them."""

import gzip
import sys
import zlib
from collections.abc import Callable

import brotli

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda data: zlib.compress(data)[2:-4],  # as many send it, without head and checksum
    "br": brotli.compress,
    "zstd": zstd.compress,
}


def zstd_with_window(data: bytes, window_log: int) -> bytes:
    """zstd that needs a window of so many bits, and does not say how much it holds."""
    kept = zstd.CompressionParameter
    stream = zstd.ZstdCompressor(options={int(kept.window_log): window_log, int(kept.content_size_flag): 0})
    return stream.compress(data) + stream.flush()
