"""Trusted proxies: peers whose word about a request's tenant is accepted, by address or network."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
