"""Checks of the values of settings that go beyond types and bounds.

No message quotes a value that may be secret. An empty value is refused and never means the default, because it usually
comes from a shell variable that is not set.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from proxy.pipeline_names import pipeline_named
from proxy.quoting import not_this


class Table(BaseModel):
    """The base of all tables: an unknown key is an error, and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def http_address(value: str) -> str:
    """The address without a slash at its end, and with `/v1` if it has no path.

    Raises `ValueError` if it is no address, or if it has a credential, because addresses are shown to everyone. Each
    call appends its own path, so nothing may follow the path of the address.
    """
    if "@" in re.split(r"[/?#]", value.partition("://")[2], maxsplit=1)[0]:
        raise ValueError("must hold no user and no password: a key belongs in api_key, which is beside it")
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False  # the error itself would quote the address
    if not is_address or not value.isprintable() or set(value) & set(" ?#"):
        raise ValueError("must be http:// or https://, a host and a path, without white space, '?' and '#'")
    url = value.rstrip("/")
    return url if urlsplit(url).path else url + "/v1"


def known_strategy(value: str) -> str:
    """`value` if it names a pipeline; raises `ValueError` that says which stage is wrong."""
    pipeline_named(value)
    return value


def not_empty(value: object) -> object:
    """`value` unless it is an empty text; raises `ValueError`."""
    if value == "":
        raise ValueError("is empty; leave it out to have the default")
    return value


def network_address(value: str) -> str:
    """`value` if it is an IP address or a network; raises `ValueError`."""
    try:
        network(value)
    except ValueError:
        raise ValueError(f"must be an address, or a network such as 10.0.0.0/8{not_this(value)}") from None
    return value


def split_at_commas(value: object) -> object:
    """Splits a text at its commas; returns any other value unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def matching(pattern: str, what: str) -> AfterValidator:
    """Checks that the whole text matches a pattern; `what` says what it must be."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {what}{not_this(value)}")
        return value

    return AfterValidator(check)


_LOWERED = AfterValidator(str.lower)
_LIST = BeforeValidator(split_at_commas)
_HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_HOST = matching(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", "a name without a port, or one such as *.example.com")
_ORIGIN = matching(
    r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@*]+", "an origin such as https://app.example.com, without a path, or *"
)
HttpAddress = Annotated[str, AfterValidator(http_address)]
KnownStrategy = Annotated[str, AfterValidator(known_strategy)]
Text = Annotated[str, BeforeValidator(not_empty)]
Secret = Annotated[SecretStr, BeforeValidator(not_empty)]
StoreUrl = Annotated[
    str,
    matching(
        r"memory://|sqlite:///.*[^/].*|redis(s|\+sentinel|\+cluster)?://.*",
        "memory://, sqlite:///relative/path, sqlite:////absolute/path, or the address of a Redis",
    ),
]
TenantSource = Annotated[str, matching(f"credential|fixed|header:{_HEADER}", "'credential', 'fixed' or 'header:NAME'")]
Networks = Annotated[tuple[Annotated[str, AfterValidator(network_address)], ...], _LIST]
HeaderNames = Annotated[tuple[Annotated[str, matching(_HEADER, "the name of a header")], ...], _LIST]
HostNames = Annotated[tuple[Annotated[str, _LOWERED, _HOST], ...], _LIST]
Origins = Annotated[tuple[Annotated[str, _LOWERED, _ORIGIN], ...], _LIST]
_PREFIX = matching(r"(/([A-Za-z0-9._~-]+|\*))+", "a path such as /api/coding/v1, with * for any one segment")
_PATH_RULE = matching(r"(\*|[A-Za-z]+) /?[A-Za-z0-9._~/*-]+", "a method and a path, such as GET models/*")
PathPrefixes = Annotated[tuple[Annotated[str, _PREFIX], ...], _LIST]
PathRules = Annotated[tuple[Annotated[str, _PATH_RULE], ...], _LIST]
_MAPPED_PREFIX = 96
"""Bits before the IPv4 address in an IPv4-mapped IPv6 address."""
Network = IPv4Network | IPv6Network


def network(text: str) -> Network:
    """Parses an address, or a network in CIDR notation; raises `ValueError`.

    An IPv4-mapped IPv6 network such as `::ffff:10.0.0.0/104` becomes the IPv4 network.
    """
    found = ip_network(text, strict=False)
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) else None
    return found if mapped is None else IPv4Network((mapped, found.prefixlen - _MAPPED_PREFIX))
