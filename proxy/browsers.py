"""Keeps web pages out: checks which `Host` and `Origin` a request has.

A page in a browser can send requests to any address that its user's machine reaches, and read the replies if a name of
its own leads there (DNS rebinding). The browser then names the page in `Origin` and that name in `Host`. Programs send
no `Origin`, and the host that they were told to use.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.errors import ProxyError
from proxy.quoting import quoted
from proxy.serving import error_response, line_of
from proxy.settings import Settings
from proxy.settings.token import is_loopback

_MAX_KNOWN = 64
_HOST = re.compile(r"\[?([^\[\]]*?)\]?(?::\d*)?")


class NotAllowed(ProxyError):
    """The host that a request asks, or the page that it comes from, is not among those of the settings."""

    status = 403
    type = "invalid_request_error"


def guarded(app: ASGIApp, settings: Settings) -> ASGIApp:
    """An app that refuses foreign hosts and origins, and answers the origins of the settings as browsers want it."""
    if origins := settings.server.origins:
        app = CORSMiddleware(
            app, origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["*"], allow_private_network=True
        )
    return _Guard(app, settings)


class _Guard:
    """The app that refuses; it remembers some of the hosts that it has accepted."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        hosts = settings.server.hosts
        self._app = app
        self._is_strict = bool(hosts) or is_loopback(settings.host)
        self._names = {"localhost", settings.host.lower(), *hosts}
        self._endings = (".localhost", *(host[1:] for host in hosts if host.startswith("*")))
        self._origins = set(settings.server.origins)
        self._known = {b""}  # HTTP/1.0 has no host, and no browser speaks it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        line_of(scope).error = error.code
        await error_response(error, scope["path"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> NotAllowed | None:
        headers = dict(scope["headers"])
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        is_own = host in self._known or self._is_own(host)
        if self._is_strict and not is_own:
            message = f"{_shown(host)} is not known as a name of this proxy; server.hosts lists those that it has."
            return NotAllowed(message, param="Host", code="host_not_allowed")
        if origin is None or self._origins & {"*", origin.decode("latin-1")}:
            return None
        if is_own and origin == scope["scheme"].encode() + b"://" + host.lower():
            return None
        message = f"Pages of {_shown(origin)} may not use this proxy; server.origins lists those that may."
        return NotAllowed(message, param="Origin", code="origin_not_allowed")

    def _is_own(self, value: bytes) -> bool:
        match = _HOST.fullmatch(value.decode("latin-1").lower())
        name = match[1] if match else ""
        is_own = name in self._names or name.endswith(self._endings) or _is_address(name)
        if is_own and len(self._known) < _MAX_KNOWN:
            self._known.add(value)
        return is_own


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _shown(value: bytes) -> str:
    return quoted(value.decode("latin-1"))
