"""Keeps web pages out: checks the `Host` and `Origin` of a request.

A page in a browser can send requests to any address that its user's machine can reach, and can read the replies if a
name that the page controls leads to that address (DNS rebinding). The browser then sends the page in `Origin` and that
name in `Host`. Programs send no `Origin`, and the host that they were told to use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address

from proxy.errors import ProxyError
from proxy.quoting import quoted
from proxy.request.callers import TrustedProxies
from proxy.settings import Settings
from proxy.settings.token import is_loopback

_FORWARDED = b"x-forwarded-proto"
_MAX_KNOWN = 64
_HOST = re.compile(r"\[?([^\[\]]*?)\]?(?::\d*)?")


class NotAllowed(ProxyError):
    """The host of a request, or the page that sent it, is not among those of the settings."""

    status = 403
    type = "invalid_request_error"


class Guard:
    def __init__(self, settings: Settings) -> None:
        hosts = settings.server.hosts
        self._is_strict = bool(hosts) or settings.open_to_all or is_loopback(settings.host)
        self._names = {"localhost", settings.host.lower(), *hosts}
        self._endings = (".localhost", *(host[1:] for host in hosts if host.startswith("*")))
        self._origins = set(settings.server.origins)
        self._trusted = TrustedProxies(settings.server.trusted_proxies)
        self.known = {b""}
        """Some of the proxy's own hosts; a request for one of them, without an origin, needs no further check.

        HTTP/1.0 has no host, and no browser speaks it.
        """

    def check(self, headers: Mapping[bytes, bytes], peer: str | None) -> None:
        """Raises `NotAllowed` for a request of a foreign page, or to a host name that is not ours.

        `peer` is the address that it came from.
        """
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        is_own = host in self.known or self._is_own(host)
        if self._is_strict and not is_own:
            name = quoted(host.decode("latin-1"))
            message = f"{name} is not known as a name of this proxy; server.hosts lists those that it has."
            raise NotAllowed(message, param="Host", code="host_not_allowed")
        if origin is None or self._origins & {"*", origin.decode("latin-1")}:
            return
        scheme = b"https" if self.is_over_tls(headers, peer) else b"http"
        if not (is_own and origin == scheme + b"://" + host.lower()):
            page = quoted(origin.decode("latin-1"))
            message = f"Pages of {page} may not use this proxy; server.origins lists those that may."
            raise NotAllowed(message, param="Origin", code="origin_not_allowed")

    def is_over_tls(self, headers: Mapping[bytes, bytes], peer: str | None) -> bool:
        """Whether the client speaks TLS: our server does not, so only a trusted proxy before it can tell."""
        return headers.get(_FORWARDED, b"").strip().lower() == b"https" and peer in self._trusted

    def _is_own(self, value: bytes) -> bool:
        match = _HOST.fullmatch(value.decode("latin-1").lower())
        name = match[1] if match else ""
        try:
            is_own = bool(ip_address(name))
        except ValueError:
            is_own = name in self._names or name.endswith(self._endings)
        if is_own and len(self.known) < _MAX_KNOWN:
            self.known.add(value)
        return is_own
