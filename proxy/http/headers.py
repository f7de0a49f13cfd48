"""Headers and content encodings: which headers are passed on, how they are read, and how bodies are decoded.

Only `gzip` and `deflate`, for which the standard library suffices, are decoded; bodies in other encodings are not read.
A request is decoded only up to the size limit of bodies, and up to `MAX_EXPANSION` times its own size. So a
decompression bomb is refused before it has taken memory, and the cost of a request is in proportion to its size on the
wire. JSON is usually packed to a fifth.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.errors import BadRequest, BodyTooLarge

Headers = list[tuple[bytes, bytes]]

ENCODING = b"content-encoding"
_OWN_FORMS = (b"x-condenser-", b"x_condenser_", b"x-condenser_", b"x_condenser-")
"""Many servers treat `_` in the name of a header like `-`."""
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")
BEARER = (b"authorization", b"Bearer ")
"""The header that carries an API key in most protocols, and the text before the key."""

IN_THREAD = 4 * 1024
"""An encoded request of this many bytes or more is decoded in a thread: it may expand to a thousand times its size."""
MAX_EXPANSION = 10
ALWAYS_DECODED = 4 * 1024 * 1024
"""A body that unpacks to this many bytes or fewer is decoded, however small it was."""
MAX_CHUNK_EXPANSION = 100
"""A chunk of a reply may unpack to this many times its size, or to `ALWAYS_DECODED` bytes."""

_GZIP = b"\x1f\x8b"  # the first bytes of a member
_GZIP_BITS = zlib.MAX_WBITS | 16
_WINDOW_BITS = {"": None, "identity": None, "gzip": _GZIP_BITS, "x-gzip": _GZIP_BITS, "deflate": zlib.MAX_WBITS}
_PARAM = "Content-Encoding"


def to_upstream(
    headers: Iterable[tuple[bytes, bytes]], api_key: str | None, key_header: tuple[bytes, bytes] = BEARER
) -> Headers:
    """The client's headers to forward; if the operator has set an API key, it replaces every credential."""
    kept = _filtered(headers, _NOT_UPSTREAM)
    if api_key is None:
        return kept
    without_credentials = [(name, value) for name, value in kept if name not in CREDENTIALS]
    name, before = key_header
    return [*without_credentials, (name, before + api_key.encode())]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The upstream's headers for the client, without `X-Condenser-` headers, which would be false."""
    return _filtered(headers, _HOP_BY_HOP)


def _filtered(headers: Iterable[tuple[bytes, bytes]], blocked: frozenset[bytes]) -> Headers:
    """The headers with names in lower case, except those blocked, those named by `Connection`, and the proxy's own."""
    kept: Headers = []
    named: set[bytes] = set()
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"connection":
            named.update(map(bytes.strip, value.lower().split(b",")))
        elif lowered not in blocked and not lowered.startswith(_OWN_FORMS):
            kept.append((lowered, value))
    return [pair for pair in kept if pair[0] not in named] if named - blocked else kept


def is_success(status: int) -> bool:
    return 200 <= status < 300


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header as text; None if it is missing. `name` is in lower case."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None


def encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The content encoding that headers name, in lower case; "" if there is none, or it changes nothing."""
    name = (first(headers, ENCODING) or "").strip().lower()
    return "" if name == "identity" else name


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return (first(headers, b"content-type") or "").startswith("text/event-stream")


def values_once(headers: Iterable[tuple[bytes, bytes]], names: Mapping[bytes, str]) -> dict[bytes, str]:
    """The values of some headers, without empty ones, by name in lower case; `names` gives each name as written.

    Raises `BadRequest` for a header that occurs twice: the proxy and the upstream might use different values.
    """
    found: dict[bytes, str] = {}
    for name, value in headers:
        if (lowered := name.lower()) not in names:
            continue
        if lowered in found:
            raise BadRequest(f"The header {names[lowered]} stands twice.", param=names[lowered])
        found[lowered] = value.decode("latin-1").strip()
    return {name: value for name, value in found.items() if value}


def encode_headers(pairs: Iterable[tuple[str, str]]) -> Headers:
    """The proxy's own headers as bytes; characters outside of Latin-1 become `?`."""
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in pairs]


def lowered_names(names: Iterable[str]) -> dict[bytes, str]:
    """Names of headers by their lower-case form, in the same order."""
    return {name.lower().encode(): name for name in names}


# -- content encodings -----------------------------------------------------------------------------------


class TooMuchData(zlib.error):
    """A chunk unpacks to more than is allowed."""


class Decoder:
    """Decodes a content encoding piece by piece; a second gzip member is an error.

    `bits` is zlib's `wbits` argument, or None if there is no encoding.
    """

    def __init__(self, bits: int | None) -> None:
        self._bits = bits
        self._inflating: Any = None

    @property
    def encoding(self) -> str:
        """The name of the encoding, `gzip` or `deflate`; "" for none."""
        return next((name for name, bits in _WINDOW_BITS.items() if bits == self._bits), "")

    @property
    def is_complete(self) -> bool:
        return self._bits is None or (self._inflating is not None and self._inflating.eof)

    def feed(self, chunk: bytes, most: int | None = None) -> bytes:
        """Decodes the next chunk to at most `most` bytes, by default `MAX_CHUNK_EXPANSION` times its own size.

        Raises `TooMuchData` or another `zlib.error`, after which the decoder is of no use.
        """
        if self._bits is None or not chunk:
            return chunk
        if self._inflating is None:
            self._inflating = zlib.decompressobj(_actual_bits(self._bits, chunk))
        data, rest = b"", chunk
        if not self._inflating.eof:
            data = self._inflating.decompress(chunk, most or max(MAX_CHUNK_EXPANSION * len(chunk), ALWAYS_DECODED))
            rest = self._inflating.unused_data
        if self._inflating.unconsumed_tail:
            raise TooMuchData("more data than is allowed")
        if self._inflating.eof and rest.startswith(_GZIP):
            raise zlib.error("more than one member")
        return data


def decoder_for(encoding: str) -> Decoder | None:
    """A decoder for a content encoding ("" for none); None if the encoding is not supported."""
    name = encoding.strip().lower()
    return Decoder(_WINDOW_BITS[name]) if name in _WINDOW_BITS else None


def decoded(data: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The data of a reply with these headers, without its content encoding; None if it cannot be decoded."""
    decoder = decoder_for(encoding_of(headers))
    try:
        return decoder.feed(data) if decoder else None
    except zlib.error:
        return None


async def decode_body(data: bytes, decoder: Decoder, limit: int) -> bytes:
    """Decodes a request's body; raises `BadRequest` if it is broken, and `BodyTooLarge` above `limit` bytes."""
    if len(data) < IN_THREAD:
        return _decode(data, decoder, limit)
    return await asyncio.to_thread(_decode, data, decoder, limit)


def _decode(data: bytes, decoder: Decoder, limit: int) -> bytes:
    limit = min(limit, max(MAX_EXPANSION * len(data), ALWAYS_DECODED))
    too_large = f"The request body of {len(data):,} bytes is larger than {limit:,} bytes when it is unpacked."
    try:
        plain = decoder.feed(data, limit + 1)
    except TooMuchData:
        raise BodyTooLarge(too_large, param=_PARAM) from None
    except zlib.error:
        raise BadRequest(f"The request body is not valid {decoder.encoding}.", param=_PARAM) from None
    if len(plain) > limit:
        raise BodyTooLarge(too_large, param=_PARAM)
    if not decoder.is_complete:
        raise BadRequest("The request body ends before all of it is unpacked.", param=_PARAM)
    return plain


def _actual_bits(bits: int, beginning: bytes) -> int:
    """The `wbits` for a body with this beginning: many clients send `deflate` without the zlib header."""
    if bits != zlib.MAX_WBITS or len(beginning) < 2 or int.from_bytes(beginning[:2]) % 31 == 0:
        return bits
    return -bits
