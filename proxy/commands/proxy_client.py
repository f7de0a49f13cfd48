"""Requests to a running proxy, with the standard library only: a health check must start quickly."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import NamedTuple

from proxy.settings import load_settings
from proxy.store import redacted

TIMEOUT = 5.0
_HEADERS = {"Content-Type": "application/json"}
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Hosts that mean every address of this machine, with one of them that a client can connect to."""


class Reply(NamedTuple):
    """A proxy's answer; status 0 and a `problem` where there is none."""

    status: int
    body: bytes = b""
    problem: str = ""


def ask(
    url: str | None,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    timeout: float = TIMEOUT,
    body: bytes | None = None,
) -> Reply:
    """The answer at `path` of the proxy at `url`, by default the one that the settings describe.

    `timeout` is in seconds. A `body` is JSON.
    """
    base = settings_url() if url is None else url
    if "@" in base:
        return Reply(0, problem=f"no proxy answers at {redacted(base)}: an address has no user and no password here")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(base.rstrip("/") + path, body, _HEADERS if body else {}, method=method)  # noqa: S310
        if token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with opener.open(request, timeout=timeout) as response:
            return Reply(response.status, response.read())
    except urllib.error.HTTPError as error:
        return Reply(error.code, error.read(), f"{base}{path} answered {error.code}")
    except (OSError, ValueError) as error:
        return Reply(0, problem=f"no proxy answers at {base}: {error}")


def settings_url() -> str:
    """The address at which this machine reaches a proxy with the current settings."""
    settings = load_settings()
    return client_url(settings.host, settings.port)


def client_url(host: str, port: int) -> str:
    """The address at which a client on this machine reaches a proxy that listens on a host."""
    return listening_url(_LOOPBACK.get(host, host), port)


def listening_url(host: str, port: int) -> str:
    """The address that a proxy listens on."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
