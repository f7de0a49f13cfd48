"""Tenants: whose request it is, by the digest of its credential or by a header from a trusted proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from proxy.errors import BadRequest
from proxy.http.headers import lowered_names, values_once
from proxy.runtime.secret_files import path_beside, read_or_create
from proxy.settings import Settings
from proxy.settings.values import network

OWNER = "condenser.owner"
"""The key of a request's owner in its ASGI scope."""
AUTHORIZATION = "Authorization"
_KEY_FILE = "tenant.key"
_SHARED_KEY = b"condenser"


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


class TrustedProxies:
    """The peers whose address is in one of the given networks."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(map(network, networks))

    def __contains__(self, peer: str | None) -> bool:
        """Whether a peer is trusted; a peer without an address, as on a local socket, is not."""
        try:
            address = ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        return any(address in each for each in self._networks)
