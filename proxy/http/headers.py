"""Which headers pass, in either direction, and how ours are named."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

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
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")


def to_upstream(headers: Iterable[tuple[bytes, bytes]], api_key: str | None) -> Headers:
    """The client's headers for the upstream; an operator's key takes the place of every credential."""
    kept = _passed(headers, _NOT_UPSTREAM)
    if api_key is None:
        return kept
    own = [(name, value) for name, value in kept if name not in CREDENTIALS]
    return [*own, (b"authorization", b"Bearer " + api_key.encode())]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The upstream's headers for the client; names of ours would be a lie and are left out."""
    return _passed(headers, _HOP_BY_HOP)


def _passed(headers: Iterable[tuple[bytes, bytes]], held: frozenset[bytes]) -> Headers:
    """All headers but those that are `held`, that Connection names, or that are ours; names in lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    if named := [value for name, value in lowered if name == b"connection"]:
        held = held.union(*map(_tokens, named))
    return [(name, value) for name, value in lowered if name not in held and not name.startswith(OURS)]


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",")]


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header as text, or None."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None


def credential(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What the caller authenticates with, or None."""
    found = {name.lower(): value for name, value in headers}
    return next((found[name].decode("latin-1") for name in CREDENTIALS if name in found), None)


def encoded(pairs: Iterable[tuple[str, str]]) -> Headers:
    """Our own headers as bytes; what is no Latin-1 becomes `?`."""
    return [(_ours(name), value.encode("latin-1", "replace")) for name, value in pairs]


@cache
def _ours(name: str) -> bytes:
    """One of our own names, which are few, as it is sent."""
    return name.lower().encode()
