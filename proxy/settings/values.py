"""What the values of settings may be, where that is not a matter of type and bounds.

No message quotes a value that may hold a secret. What is empty is refused and never taken for the default: it is mostly
a variable of a shell that is not set.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from proxy.http.trusted_proxies import network
from strategies import TABLE, parse

_SCHEMES = ("http://", "https://")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def http_address(value: str) -> str:
    """An address without a slash at its end, with `/v1` where it has no path.

    Raises `ValueError` for what is none, and for one that holds a credential, for addresses are shown to everyone. Each
    call puts its own path behind it, so it must end with one.
    """
    if not value.startswith(_SCHEMES):
        raise ValueError("must start with http:// or https://")
    authority = re.split(r"[/?#]", value.partition("://")[2], maxsplit=1)[0]
    if "@" in authority:
        raise ValueError("must hold no user and no password: a key belongs in api_key, which is beside it")
    if " " in value or not value.isprintable():
        raise ValueError("must hold no white space")
    if not _names_a_server(value):
        raise ValueError("must name a host, or a host and the number of a port")
    if "?" in value or "#" in value:
        raise ValueError("must end with its path, without '?' and '#'")
    url = value.rstrip("/")
    return url if urlsplit(url).path else url + "/v1"


def _names_a_server(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False  # what it says quotes the address


def known_strategy(value: str) -> str:
    """`value` if it is a pipeline; raises `ValueError` that lists the names."""
    if parse(value) is None:
        raise ValueError(f"unknown strategy '{value}'; known: {', '.join(TABLE)}, joined with '+'")
    return value


def not_empty(value: object) -> object:
    """`value` unless it is an empty text; raises `ValueError`."""
    if value == "":
        raise ValueError("is empty; leave it out where nothing is meant")
    return value


def header_name(value: str) -> str:
    """`value` if a header can have that name; raises `ValueError`."""
    if not _HEADER.fullmatch(value):
        raise ValueError(f"'{value}' is no name of a header")
    return value


def peers(value: str) -> str:
    """`value` if it is an address or a network; raises `ValueError`."""
    try:
        network(value)
    except ValueError:
        raise ValueError(f"'{value}' is no address, and no network such as 10.0.0.0/8") from None
    return value


def in_a_list(value: object) -> object:
    """A text as the list of what stands between its commas; anything else as it is."""
    return [each.strip() for each in value.split(",")] if isinstance(value, str) else value


HttpAddress = Annotated[str, AfterValidator(http_address)]
KnownStrategy = Annotated[str, AfterValidator(known_strategy)]
Text = Annotated[str, BeforeValidator(not_empty)]
Secret = Annotated[SecretStr, BeforeValidator(not_empty)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(peers)], ...], BeforeValidator(in_a_list)]
HeaderNames = Annotated[tuple[Annotated[str, AfterValidator(header_name)], ...], BeforeValidator(in_a_list)]
