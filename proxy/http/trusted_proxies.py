"""Trusted proxies: peers whose word about a request's tenant is accepted, by address or network."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address

from proxy.settings.values import network


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
