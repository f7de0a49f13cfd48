"""Which headers pass, in either direction, and how ours are named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Headers = list[tuple[bytes, bytes]]

OURS = b"x-condenser-"
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_REQUEST_ONLY = frozenset((b"host", b"content-length", b"expect"))
CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")


def to_upstream(headers: Iterable[tuple[bytes, bytes]], api_key: str | None) -> Headers:
    """The client's headers for the upstream; an operator's key takes the place of every credential."""
    kept = [
        (name, value) for name, value in _end_to_end(headers) if name not in _REQUEST_ONLY and not name.startswith(OURS)
    ]
    if api_key is None:
        return kept
    own = [(name, value) for name, value in kept if name not in CREDENTIALS]
    return [*own, (b"authorization", b"Bearer " + api_key.encode())]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The upstream's headers for the client; names of ours would be a lie and are left out."""
    return [(name, value) for name, value in _end_to_end(headers) if not name.startswith(OURS)]


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    lowered = [(name.lower(), value) for name, value in headers]
    named = {token.strip().lower() for name, value in lowered if name == b"connection" for token in value.split(b",")}
    for name, value in lowered:
        if name not in _HOP_BY_HOP and name not in named:
            yield name, value


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header as text, or None."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What the caller authenticates with, or None."""
    found = {name.lower(): value for name, value in headers}
    return next((found[name].decode("latin-1") for name in CREDENTIALS if name in found), None)


def encoded(pairs: Iterable[tuple[str, str]]) -> Headers:
    """Our own headers as bytes; what is no Latin-1 becomes `?`."""
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in pairs]
