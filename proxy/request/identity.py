"""Finds out which tenant a request belongs to and which session it names.

An id is valid only inside its tenant. The session is named by the first of several sources that has an id: the proxy's
own header, other session headers, then members of the body. An id only names a tree of histories; which records apply
is decided by the chain of digests, never by the id alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from proxy.errors import BadRequest
from proxy.http.headers import values_once
from proxy.http.trusted_proxies import TrustedProxies
from proxy.runtime.secret_files import path_beside, read_or_create
from proxy.settings import Settings

OWN_HEADER = "X-Condenser-Session"
OWNER = "condenser.owner"
"""The key of a request's owner in its ASGI scope."""
AUTHORIZATION = "Authorization"
DERIVED = "derived"
MOST_SHOWN = 256
"""The most characters of an id that headers and logs show as it is."""
_ANY_SESSION_HEADER = re.compile(rb"x-[a-z0-9-]+-session-id")
_KEY_FILE = "tenant.key"
_SHARED_KEY = b"condenser"


@dataclass(frozen=True, slots=True)
class Identity:
    """The session id of a request, and the header or member that gave it.

    `id` is None if the session must be derived from the messages. A `weak` id counts only if the stored history
    continues in the request.
    """

    source: str = DERIVED
    id: str | None = None
    weak: bool = False


class Owner(NamedTuple):
    """Whose request it is; both are keyed digests, so that no store ever holds a credential."""

    tenant: str
    """Who owns the sessions."""
    credential: str
    """What the caller authenticates with; the same for all callers without a credential."""


class Tenants:
    """Names the owners of requests by their headers."""

    def __init__(self, settings: Settings, key: bytes) -> None:
        self._source = settings.tenant.source
        self._header = self._source.partition(":")[2]
        self._credentials = lowered_names([AUTHORIZATION, *settings.tenant.headers])
        self._names = lowered_names([*self._credentials.values(), *filter(None, [self._header])])
        self._trusted = TrustedProxies(settings.tenant.trusted_proxies)
        self._key = key[:64]

    def owner(self, headers: Sequence[tuple[bytes, bytes]], peer: str | None) -> Owner:
        """The owner of a request from the address `peer`.

        Raises `BadRequest` if a header must name the tenant and is missing, or does not come from a trusted proxy, and
        if such a header, or one with a credential, stands twice.
        """
        values = values_once(headers, self._names)
        credential = self._digest("credential", self._credential(values))
        if self._source == "credential":
            return Owner(credential, credential)
        if not self._header:
            return Owner(self._source, credential)
        value = values.get(self._header.lower().encode())
        if value is None or peer not in self._trusted:
            raise BadRequest(
                f"The header {self._header} from a trusted proxy must name the tenant.", param=self._header
            )
        return Owner(self._digest("header", value), credential)

    def _credential(self, values: Mapping[bytes, str]) -> str:
        """All credentials of a request as one text: the first by its value alone, wherever it stands."""
        value, *others = [(values[name], name) for name in self._credentials if name in values] or [("", b"")]
        return "\0".join([value[0], *(f"{name.decode()}\0{other}" for other, name in others)])

    def _digest(self, kind: str, value: str) -> str:
        data = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
        return blake2b(data, key=self._key, digest_size=16).hexdigest()


def tenant_key(settings: Settings) -> bytes:
    """The key of tenant digests: from the settings, else from a file beside the embedded store.

    Replicas that share a Redis must agree on the key, so without a setting they use a fixed one.
    """
    if settings.tenant.pepper is not None:
        return settings.tenant.pepper.get_secret_value().encode()
    path = key_file(settings)
    return read_or_create(path) if path else _SHARED_KEY


def key_file(settings: Settings) -> Path | None:
    """The file with the key of tenant digests; None if the key is not in a file."""
    return path_beside(settings.store.url, _KEY_FILE) if settings.tenant.pepper is None else None


def lowered_names(names: Iterable[str]) -> dict[bytes, str]:
    """The names of session headers by their lower-case form in a request, in the same order."""
    return {name.lower().encode(): name for name in names}


def identify(
    own_id: str | None, headers: Sequence[tuple[bytes, bytes]], body: Mapping[str, Any], names: Mapping[bytes, str]
) -> Identity:
    """The session id of the first source that has one; raises `BadRequest` for control characters in it.

    `own_id` comes from the proxy's own header or body key. `names` are the session headers, from `lowered_names`.
    """
    if own_id is not None:
        return Identity(OWN_HEADER, own_id)
    for source, value in _candidates(headers, body, names):
        if isinstance(value, str) and value:
            _check(source, value)
            return Identity(source, value, weak=source == "prompt_cache_key")
    return Identity()


def _candidates(
    headers: Sequence[tuple[bytes, bytes]], body: Mapping[str, Any], names: Mapping[bytes, str]
) -> Iterable[tuple[str, Any]]:
    """The sources of a session id in order of precedence, each with its value."""
    lowered = [(header.lower(), value) for header, value in headers]
    first_of = dict(reversed(lowered))
    for header, name in names.items():
        if header in first_of:
            yield name, first_of[header].decode("latin-1")
    for header, value in lowered:
        if header.endswith(b"-session-id") and _ANY_SESSION_HEADER.fullmatch(header):
            yield header.decode("latin-1"), value.decode("latin-1")
    metadata = body.get("metadata")
    if isinstance(metadata, Mapping):
        yield "metadata.session_id", metadata.get("session_id")
    yield "prompt_cache_key", body.get("prompt_cache_key")


def _check(source: str, value: str) -> None:
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise BadRequest(f"{source} holds control characters.", param=source)


def session_key(session_id: str) -> str:
    """The name of an explicit session in keys: a digest, so that ids of any length stay distinct."""
    return "e" + blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def printable_id(session_id: str) -> str:
    """An id as headers and logs show it: itself, or its digest if it is too long or not printable ASCII."""
    if len(session_id) <= MOST_SHOWN and session_id.isascii() and session_id.isprintable():
        return session_id
    return session_key(session_id)


def provisional_id(tenant: str, opening: bytes) -> str:
    """An id for a conversation that is not stored; it only serves to tell two of them apart in headers and logs."""
    return "p" + blake2b(opening, key=tenant.encode()[:64], digest_size=8).hexdigest()


def new_derived_id() -> str:
    """A new random id for a derived session."""
    return "d" + secrets.token_hex(8)
