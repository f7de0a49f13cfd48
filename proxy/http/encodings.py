"""Content encodings: gzip, deflate, br and zstd are decoded piece by piece; bodies in other encodings are not read.

A request is decoded only up to the size limit of bodies, and up to `MAX_EXPANSION` times its own size. So a
decompression bomb is refused before it has taken memory, and the cost of a request is in proportion to its size on the
wire. JSON is usually packed to a fifth.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import brotli

from proxy.errors import BadRequest, BodyTooLarge
from proxy.http.headers import encoding_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

IN_THREAD = 4 * 1024
"""An encoded request of this many bytes or more is decoded in a thread: it may expand to a thousand times its size."""
MAX_EXPANSION = 10
ALWAYS_DECODED = 4 * 1024 * 1024  # a body that unpacks to this many bytes or fewer is decoded, however small it was
MAX_CHUNK_EXPANSION = 100  # a chunk of a reply may unpack to this many times its size, or to `ALWAYS_DECODED` bytes
MAX_MEMBERS = 100
"""The members of gzip, or frames of zstd, that begin in one chunk: what follows one is copied for the next."""
ACCEPTED = "gzip, deflate, br, zstd"

# The largest window that RFC 9659 obliges a receiver to accept; it bounds the memory of a frame.
_ZSTD_WINDOW = {int(zstd.DecompressionParameter.window_log_max): 23}
_BROTLI_STEP = 64 * 1024
_PARAM = "Content-Encoding"


class NotDecodable(Exception):
    """Bytes are not of their encoding, or unpack to more than is allowed."""


class TooMuchData(NotDecodable):
    """A chunk unpacks to more than is allowed."""


class _Brotli:
    """brotli's decompressor with the interface of the others."""

    unused_data = b""

    def __init__(self) -> None:
        self._stream = brotli.Decompressor()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._stream.is_finished())

    def decompress(self, data: bytes, most: int) -> bytes:
        # In steps: brotli may return twice the limit, and does not report that more output is waiting.
        parts: list[bytes] = []
        left = most
        while left > 0 and not self.eof:
            part: bytes = self._stream.process(data, output_buffer_limit=_BROTLI_STEP)
            if not part:
                break
            parts.append(part)
            left, data = left - len(part), b""
        self.needs_input = left > 0
        return b"".join(parts)


class _Codec(NamedTuple):
    begun: Callable[[bytes], Any]  # the decompressor for data with this beginning
    next_begins: bytes | None = None
    """With what another member begins after one; None if there is only one. Other bytes after the end are ignored."""


def _deflate(beginning: bytes) -> Any:
    """Many clients send `deflate` without the zlib header."""
    has_header = len(beginning) < 2 or int.from_bytes(beginning[:2]) % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


_GZIP = _Codec(lambda _: zlib.decompressobj(zlib.MAX_WBITS | 16), b"\x1f\x8b")
_CODECS = {
    "": None,
    "identity": None,
    "gzip": _GZIP,
    "x-gzip": _GZIP,
    "deflate": _Codec(_deflate),
    "br": _Codec(lambda _: _Brotli()),
    "zstd": _Codec(lambda _: zstd.ZstdDecompressor(options=_ZSTD_WINDOW), b""),
}


class Decoder:
    """Decodes a content encoding piece by piece."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self._codec = _CODECS[encoding]
        self._member: Any = None

    @property
    def is_complete(self) -> bool:
        return self._codec is None or (self._member is not None and self._member.eof)

    def feed(self, chunk: bytes, most: int | None = None) -> bytes:
        """Decodes the next chunk to about `most` bytes, by default `MAX_CHUNK_EXPANSION` times its own size.

        Raises `NotDecodable`, after which the decoder is of no use.
        """
        if self._codec is None or not chunk:
            return chunk
        left = most or max(MAX_CHUNK_EXPANSION * len(chunk), ALWAYS_DECODED)
        parts: list[bytes] = []
        members, rest = 0, chunk
        try:
            while rest:
                mark = self._codec.next_begins
                if self.is_complete and (mark is None or not mark.startswith(rest[: len(mark)])):
                    break
                if self._member is None or self._member.eof:
                    members += 1
                    self._member = self._codec.begun(rest)
                parts.append(self._member.decompress(rest, left))
                left -= len(parts[-1])
                rest = self._member.unused_data
                if _holds_more(self._member) or (rest and left <= 0):
                    raise TooMuchData("more data than is allowed")
                if members > MAX_MEMBERS:
                    raise NotDecodable("too many members")
        except (zlib.error, zstd.ZstdError, brotli.error) as error:
            raise NotDecodable(str(error)) from None
        return b"".join(parts)


def _holds_more(member: Any) -> bool:
    """Whether a decompressor stopped because it may return no more."""
    return bool(getattr(member, "unconsumed_tail", b"")) or not (member.eof or getattr(member, "needs_input", True))


def decoder_for(encoding: str) -> Decoder | None:
    """A decoder for a content encoding ("" for none); None if the encoding is not supported."""
    name = encoding.strip().lower()
    return Decoder(name) if name in _CODECS else None


def decoded(data: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The data of a reply with these headers, without its content encoding; None if it cannot be decoded."""
    decoder = decoder_for(encoding_of(headers))
    try:
        return decoder.feed(data) if decoder else None
    except NotDecodable:
        return None


def most_unpacked(size: int, limit: int) -> int:
    """The bytes that a request may have when all in it is unpacked: it has `size` on the wire, and any at most `limit`.

    It bounds whatever expands, content encodings and the proxy's own items alike, before anything is unpacked.
    """
    return min(limit, max(MAX_EXPANSION * size, ALWAYS_DECODED))


async def decode_body(data: bytes, decoder: Decoder, limit: int) -> bytes:
    """Decodes a request's body; raises `BadRequest` if it is broken, and `BodyTooLarge` above `limit` bytes."""
    if len(data) < IN_THREAD:
        return _decode(data, decoder, limit)
    return await asyncio.to_thread(_decode, data, decoder, limit)


def _decode(data: bytes, decoder: Decoder, limit: int) -> bytes:
    limit = most_unpacked(len(data), limit)
    too_large = f"The request body of {len(data):,} bytes is larger than {limit:,} bytes when it is unpacked."
    try:
        plain = decoder.feed(data, limit + 1)
    except TooMuchData:
        raise BodyTooLarge(too_large, param=_PARAM) from None
    except NotDecodable:
        raise BadRequest(f"The request body is not valid {decoder.encoding}.", param=_PARAM) from None
    if len(plain) > limit:
        raise BodyTooLarge(too_large, param=_PARAM)
    if not decoder.is_complete:
        raise BadRequest("The request body ends before all of it is unpacked.", param=_PARAM)
    return plain
