"""Headers: which are passed on, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from urllib.parse import unquote_to_bytes

from proxy import quoting
from proxy.errors import BadRequest

Headers = list[tuple[bytes, bytes]]
Passes = Callable[[bytes], object]

ENCODING = b"content-encoding"
_OWN_FORMS = (b"x-condenser-", b"x_condenser_", b"x-condenser_", b"x_condenser-")
"""Many servers treat `_` in the name of a header like `-`."""
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
_NOT_UPSTREAM = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
API_KEYS = (b"authorization", b"api-key", b"x-api-key")
CREDENTIALS = tuple(name.lower().encode() for name in quoting.CREDENTIALS)
COOKIE = b"cookie"
PASSED = (  # `*` stands for any characters
    *(b"content-type", b"content-encoding", b"accept", b"accept-encoding", b"accept-language", b"user-agent"),
    *(b"if-none-match", b"idempotency-key", b"http-referer", b"x-title", b"x-app", b"originator"),
    *(b"anthropic-version", b"anthropic-beta", b"anthropic-dangerous-direct-browser-access", b"openai-beta"),
    *(b"x-request-id", b"x-client-request-id", b"traceparent", b"tracestate", b"x-stainless-*", b"x-codex-*"),
    *(b"x-openai-subagent", b"x-claude-code-agent-id", b"x-session-affinity", b"x-grok-conv-id", b"x-*-session-id"),
)
"""All that goes out of a caller's headers beside a credential of the operator, with those that name its session.

A list of what may not go out would never be complete: a gateway takes the server that the credential goes to from a
header of its own, and a vendor takes the account that pays from another.
"""
_QUERY = frozenset(
    b"api-version beta client_version include include[] limit order after before after_id before_id page".split()
)
_MAY_BE_CREDENTIAL = re.compile(
    rb"(?i)(?:.*[-_.])?(?:api)?(?:key|token|secret|sig|signature|auth|authorization|password)"
)
_HARMLESS = (  # what proxies and browsers add, and what says which account a login is for
    *(b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    *(b"origin", b"referer", b"cache-control", b"pragma", b"priority", b"sec-*", b"version", b"chatgpt-account-id"),
    *(b"openai-organization", b"openai-project"),
)
# What describes the body: a signature, after which no other body is accepted (of RFC 9421, or of AWS, which begins an
# `Authorization`), digests, and a key by which a server knows a body that comes twice.
SIGNATURE, SIGNED = b"signature-input", b"AWS4-"
_IDEMPOTENCY_KEY, _MAX_KEY = b"idempotency-key", 255
DESCRIBING = frozenset((b"content-digest", b"repr-digest", b"digest", b"content-md5", _IDEMPOTENCY_KEY))
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")
BEARER = (b"authorization", b"Bearer ")
"""The header that carries an API key in most protocols, and the text before the key."""


def passing(names: Iterable[bytes], *, without: Iterable[bytes] = ()) -> Passes:
    """What tells whether the name of a header, in lower case, is one of these, and none of those `without`."""
    return re.compile(b"(?!(?:%s)\\Z)(?:%s)" % (_either(without), _either(names))).fullmatch


def _either(names: Iterable[bytes]) -> bytes:
    return b"|".join(re.escape(name).replace(rb"\*", b"[^\n]*") for name in names) or b"(?!)"


PROVES_LOGIN = passing([BEARER[0], *PASSED])
"""Whether a question by which a login is proved has a header of the request's: of such a name."""
_BEARS_NOTHING = passing([*PASSED, *_HARMLESS, *_NOT_UPSTREAM, *(form + b"*" for form in _OWN_FORMS)])


def may_bear_more(headers: Iterable[tuple[bytes, bytes]], known: Collection[bytes]) -> bool:
    """Whether a header may be a credential that the proxy does not know: one that is not `known`, and on no list."""
    return not all(name in known or _BEARS_NOTHING(name) for name in {name.lower() for name, _ in headers})


def query_passed(query: bytes, *, is_guarded: bool = True) -> bytes:
    """What goes out of a query beside a credential of the operator, or, unless it `is_guarded`, where none goes.

    A part that some servers split in two does not.
    """
    named = ((unquote_to_bytes(part.partition(b"=")[0]), part) for part in query.split(b"&") if b";" not in part)
    is_out = _QUERY.__contains__ if is_guarded else lambda name: not _MAY_BE_CREDENTIAL.fullmatch(name)
    return b"&".join(part for name, part in named if is_out(name))


def to_upstream(headers: Iterable[tuple[bytes, bytes]], passes: Passes | None = None) -> Headers:
    """The client's headers to forward, of which `passes` lets some through by their names; None lets all."""
    kept = _filtered(headers, _NOT_UPSTREAM)
    return kept if passes is None else [pair for pair in kept if passes(pair[0])]


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


def for_body(headers: Headers, body: bytes) -> Headers:
    """The headers for another body than the one that they came with: without its digests, and with a key of its own."""
    mark = b"-" + blake2b(body, digest_size=8).hexdigest().encode()
    keys = [(name, value[: _MAX_KEY - len(mark)] + mark) for name, value in headers if name == _IDEMPOTENCY_KEY]
    return [*(pair for pair in headers if pair[0] not in DESCRIBING), *keys]


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
