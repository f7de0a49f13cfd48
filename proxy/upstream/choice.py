"""Which upstream a request goes to: `destination_of` picks one of those of the settings.

A request never chooses an address. It says its protocol, by its path, and no more than that; the header
`anthropic-version`, which no other API has, stands for the protocol `messages` at any path. Everything that is kept for
each upstream (proofs of credentials, windows, lanes, forms, calibrations) is kept by the `base_url` of the destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import SecretStr

from proxy.errors import NoUpstream
from proxy.http.headers import BEARER, Headers
from proxy.quoting import redacted
from proxy.settings.tables import PROTOCOLS, UpstreamEntry, UpstreamSettings
from strategies.dialects.chat import CHAT
from strategies.dialects.messages import MESSAGES
from strategies.dialects.responses import RESPONSES

_ANTHROPIC_VERSION, _VERSION = b"anthropic-version", b"2023-06-01"


@dataclass(frozen=True, slots=True)
class Destination:
    """One upstream: its address, the operator's key for it if there is one, and the protocols that go there."""

    name: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    protocols: Sequence[str] = PROTOCOLS

    @property
    def headers(self) -> Headers:
        """The headers of the proxy's own requests for pages; without a key there are none."""
        if self.api_key is None:
            return []
        if tuple(self.protocols) == (MESSAGES.name,):
            return [(b"x-api-key", self.api_key.encode()), (_ANTHROPIC_VERSION, _VERSION)]
        return [(BEARER[0], BEARER[1] + self.api_key.encode())]


DEFAULTS = (
    Destination("openai", "https://api.openai.com/v1", protocols=(CHAT.name, RESPONSES.name)),
    Destination("anthropic", "https://api.anthropic.com/v1", protocols=(MESSAGES.name,)),
)


def destinations(one: UpstreamSettings, named: Sequence[UpstreamEntry]) -> tuple[Destination, ...]:
    """The upstreams of the settings: of `[[upstreams]]`, then of `upstream.base_url`; two defaults if there is none."""
    found = [Destination(each.name, each.base_url, _text(each.api_key), each.protocols) for each in named]
    if one.base_url is not None:
        found.append(Destination("upstream", one.base_url, _text(one.api_key)))
    return tuple(found) or DEFAULTS


def _text(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key is not None else None


def destination_of(
    destinations: Sequence[Destination], protocol: str, headers: Iterable[tuple[bytes, bytes]]
) -> Destination:
    """The first upstream that takes a request of this protocol with these headers; raises `NoUpstream`.

    The names of the headers are in lower case. A path of no protocol (`""`) leads to where chat's does, else to the
    first upstream.
    """
    if any(name == _ANTHROPIC_VERSION for name, _ in headers):
        protocol = MESSAGES.name
    for each in destinations:
        if (protocol or CHAT.name) in each.protocols:
            return each
    if not protocol:
        return destinations[0]
    raise NoUpstream(f"No upstream of this proxy takes requests of the protocol {protocol}.")


def shown(destinations: Sequence[Destination]) -> str:
    """The addresses of upstreams for people, without credentials; with their names if there are several."""
    if len(destinations) == 1:
        return redacted(destinations[0].base_url)
    return ", ".join(f"{redacted(each.base_url)} ({each.name}: {' '.join(each.protocols)})" for each in destinations)
