"""Peers that are believed what they say of others: by their addresses, or by the networks that those are in."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_MAPPED = 96
"""Bits before an address of IPv4 that is written in IPv6."""
Network = IPv4Network | IPv6Network


def network(text: str) -> Network:
    """The network that an address or a network in CIDR notation stands for; raises `ValueError`.

    One of IPv4 that is written in IPv6 (`::ffff:10.0.0.0/104`) is that of IPv4.
    """
    found = ip_network(text, strict=False)
    mapped = found.network_address.ipv4_mapped if isinstance(found, IPv6Network) else None
    return found if mapped is None else IPv4Network((mapped, found.prefixlen - _MAPPED))


class Peers:
    """Those whose address is in one of some networks."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = tuple(map(network, networks))

    def __contains__(self, peer: str | None) -> bool:
        """Whether a peer is one of them; one without an address, as on a local socket, is not."""
        try:
            address = ip_address(peer or "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address):
            address = address.ipv4_mapped or address
        return any(address in each for each in self._networks)
