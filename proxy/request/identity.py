"""Whose request it is and which session it names.

A tenant comes first: no id is valid outside of it. Then the first source that names a session, in the order of the
design. An id is only a name for a tree of histories; what is applied is decided by the chain, never by the id alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from proxy.errors import BadRequest
from proxy.http.headers import credential, first
from proxy.http.trusted_proxies import Peers
from proxy.runtime.secret_files import beside, made_once
from proxy.settings import Settings

OWN = "X-Condenser-Session"
DERIVED = "derived"
LONGEST = 256
_ANY_SESSION_HEADER = re.compile(rb"x-[a-z0-9-]+-session-id")
_KEY_FILE = "tenant.key"
_SHARED_KEY = b"condenser"


@dataclass(frozen=True, slots=True)
class Identity:
    """The session that a request names and where it does; `id` is None where it must be derived.

    `weak` ids count only where the chain continues.
    """

    source: str = DERIVED
    id: str | None = None
    weak: bool = False


class Tenants:
    """Names tenants: by a keyed digest of the credential, so that no store ever holds one."""

    def __init__(self, settings: Settings, key: bytes) -> None:
        self._source = settings.tenant.source
        self._trusted = Peers(settings.tenant.trusted_proxies)
        self._key = key[:64]

    def tenant(self, headers: Sequence[tuple[bytes, bytes]], peer: str | None) -> str:
        """The tenant of a request from `peer`; raises `BadRequest` where a needed header is missing."""
        if self._source == "fixed":
            return "fixed"
        if self._source == "credential":
            return self._digest("credential", credential(headers) or "")
        name = self._source.removeprefix("header:")
        value = first(headers, name.lower().encode())
        if value is None or peer not in self._trusted:
            raise BadRequest(f"The header {name} from a trusted proxy must name the tenant.", param=name)
        return self._digest("header", value)

    def _digest(self, kind: str, value: str) -> str:
        data = f"{kind}\0{value}".encode("utf-8", "surrogatepass")
        return blake2b(data, key=self._key, digest_size=16).hexdigest()


def tenant_key(settings: Settings) -> bytes:
    """The key of tenant digests: from the settings, else from a file beside the embedded store.

    Replicas on one Redis must agree, so without a setting they share a fixed key.
    """
    if settings.tenant.pepper is not None:
        return settings.tenant.pepper.get_secret_value().encode()
    path = key_file(settings)
    return made_once(path) if path else _SHARED_KEY


def key_file(settings: Settings) -> Path | None:
    """The file that has the key of tenant digests; None where no file has it."""
    return beside(settings.store.url, _KEY_FILE) if settings.tenant.pepper is None else None


def listed(names: Iterable[str]) -> dict[bytes, str]:
    """The headers that may name a session, in order, each by its name as a request has it."""
    return {name.lower().encode(): name for name in names}


def identify(
    given: str | None, headers: Sequence[tuple[bytes, bytes]], body: Mapping[str, Any], names: Mapping[bytes, str]
) -> Identity:
    """The first source of a session id; `given` is the proxy's own header or body key, `names` are `listed` headers."""
    if given is not None:
        return Identity(OWN, given)
    for source, value in _candidates(headers, body, names):
        if isinstance(value, str) and value:
            _check(source, value)
            return Identity(source, value, weak=source == "prompt_cache_key")
    return Identity()


def _candidates(
    headers: Sequence[tuple[bytes, bytes]], body: Mapping[str, Any], names: Mapping[bytes, str]
) -> Iterable[tuple[str, Any]]:
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


def session_key(identity: str) -> str:
    """The name of an explicit session in keys: always a digest, so that no id is ever cut or merged."""
    return "e" + blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def shown(identity: str) -> str:
    """An id as headers and logs show it; one that is too long, or is not ASCII, by its digest."""
    if len(identity) <= LONGEST and identity.isascii() and identity.isprintable():
        return identity
    return session_key(identity)


def provisional(tenant: str, opening: bytes) -> str:
    """The id of a conversation that is not stored: it only lets a reader tell two of them apart."""
    return "p" + blake2b(opening, key=tenant.encode()[:64], digest_size=8).hexdigest()


def random_session() -> str:
    """The id of a derived session."""
    return "d" + secrets.token_hex(8)
