"""Headers: which are passed on, and how they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from proxy.errors import BadRequest

Headers = list[tuple[bytes, bytes]]

ENCODING = b"content-encoding"
_OWN_FORMS = (b"x-condenser-", b"x_condenser_", b"x-condenser_", b"x_condenser-")
"""Many servers treat `_` in the name of a header like `-`."""
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_REROUTING = frozenset(  # some servers take the method or the path of a request from these, past all that was checked
    b"x-http-method-override x-http-method x-method-override x-original-url x-original-uri x-rewrite-url".split()
)
CREDENTIALS = (b"authorization", b"api-key", b"x-api-key")
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")
BEARER = (b"authorization", b"Bearer ")
"""The header that carries an API key in most protocols, and the text before the key."""


def to_upstream(
    headers: Iterable[tuple[bytes, bytes]],
    api_key: str | None,
    key_header: tuple[bytes, bytes] = BEARER,
    *,
    without: Collection[bytes] = (),
) -> Headers:
    """The client's headers to forward; if the operator has set an API key, it replaces every credential.

    Then no header leads it elsewhere, either. Headers `without` which a request goes there are credentials too.
    """
    kept = _filtered(headers, _NOT_UPSTREAM)
    if api_key is None and not without:
        return kept
    left_out = {*CREDENTIALS, *without, *_REROUTING}
    without_credentials = [pair for pair in kept if pair[0] not in left_out]
    if api_key is None:
        return without_credentials
    name, before = key_header
    return [*without_credentials, (name, before + api_key.encode())]


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The upstream's headers for the client, without `X-Condenser-` headers, which would be false."""
    return _filtered(headers, _HOP_BY_HOP)


def _filtered(headers: Iterable[tuple[bytes, bytes]], blocked: frozenset[bytes]) -> Headers:
    """The headers with names in lower case, except those blocked, those named by `Connection`, and the proxy's own."""
    pairs: Headers = []
    named: set[bytes] = set()
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"connection":
            named.update(map(bytes.strip, value.lower().split(b",")))
        elif lowered not in blocked and not lowered.startswith(_OWN_FORMS):
            pairs.append((lowered, value))
    return [pair for pair in pairs if pair[0] not in named] if named - blocked else pairs


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
    values: dict[bytes, str] = {}
    for name, value in headers:
        if (lowered := name.lower()) not in names:
            continue
        if lowered in values:
            raise BadRequest(f"The header {names[lowered]} stands twice.", param=names[lowered])
        values[lowered] = value.decode("latin-1").strip()
    return {name: value for name, value in values.items() if value}


def encode_headers(pairs: Iterable[tuple[str, str]]) -> Headers:
    """The proxy's own headers as bytes; characters outside of Latin-1 become `?`."""
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in pairs]


def lowered_names(names: Iterable[str]) -> dict[bytes, str]:
    """Names of headers by their lower-case form, in the same order."""
    return {name.lower().encode(): name for name in names}
