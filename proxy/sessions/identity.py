"""Finds out which tenant a request belongs to and which session it names.

An id is valid only inside its tenant. The session is named by the first of several sources that has an id: the proxy's
own header, other session headers, then members of the body. An id only names a tree of histories; which records apply
is decided by the chain of digests, never by the id alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from proxy.endpoints.endpoint import Endpoint, SessionHint, Values
from proxy.errors import BadRequest
from proxy.http.headers import Headers

OWN_HEADER = "X-Condenser-Session"
DERIVED = "derived"
CHAT = "chat"
"""The dialect of all that does not name one; sessions of earlier versions do not."""
MAX_SHOWN = 256
"""The maximum number of characters of an id that headers and logs show as it is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The session id of a request, and the header or member that gave it.

    `id` is None if the session must be derived from the messages. A `weak` id counts only if the stored history
    continues in the request. The same id in another dialect is another session.
    """

    source: str = DERIVED
    id: str | None = None
    weak: bool = False
    dialect: str = CHAT

    @property
    def key(self) -> str:
        """The name of the session in keys of the store, for an explicit id."""
        return session_key(self.id or "", self.dialect)


def identify(
    own_id: str | None, headers: Headers, names: Mapping[bytes, str], endpoint: Endpoint, values: Values
) -> Identity:
    """The session id of the first source that has one; raises `BadRequest` for control characters in it.

    `own_id` comes from the proxy's own header or body key. `names` are the session headers, from `lowered_names`;
    `values` are the members of a body that came to the endpoint.
    """
    if own_id is not None:
        return Identity(OWN_HEADER, own_id, dialect=endpoint.dialect.name)
    for hint in _hints(headers, names, endpoint, values):
        if isinstance(hint.id, str) and hint.id:
            _check(hint.source, hint.id)
            return Identity(hint.source, hint.id, hint.is_weak, endpoint.dialect.name)
    return Identity(dialect=endpoint.dialect.name)


def _hints(headers: Headers, names: Mapping[bytes, str], endpoint: Endpoint, values: Values) -> Iterator[SessionHint]:
    """The sources of a session id in order of precedence: the configured headers, then what the endpoint knows."""
    lowered = [(header.lower(), value) for header, value in headers]
    first_of = dict(reversed(lowered))
    for header, name in names.items():
        if header in first_of:
            yield SessionHint(name, first_of[header].decode("latin-1"))
    yield from endpoint.session_hints(lowered, values)


def _check(source: str, value: str) -> None:
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise BadRequest(f"{source} holds control characters.", param=source)


def session_key(session_id: str, dialect: str = CHAT) -> str:
    """The name of an explicit session in keys: a digest, so that ids of any length stay distinct."""
    key = b"" if dialect == CHAT else dialect.encode()
    return "e" + blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16, key=key).hexdigest()


def printable_id(session_id: str) -> str:
    """An id as headers and logs show it: itself, or its digest if it is too long or not printable ASCII."""
    if len(session_id) <= MAX_SHOWN and session_id.isascii() and session_id.isprintable():
        return session_id
    return session_key(session_id)


def provisional_id(tenant: str, opening: bytes) -> str:
    """An id for a conversation that is not stored; it only serves to tell two of them apart in headers and logs."""
    return "p" + blake2b(opening, key=tenant.encode()[:64], digest_size=8).hexdigest()


def new_derived_id() -> str:
    return "d" + secrets.token_hex(8)
