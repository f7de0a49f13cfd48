"""Requests to a running proxy, with the standard library only: a health check must start quickly."""

from __future__ import annotations

import os
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urlsplit

from proxy.commands.running import configured_url, find_proxy
from proxy.quoting import redacted

TIMEOUT = 5.0
URL_HELP = "where the proxy is; by default the one that runs here, else the settings' host and port"
_HEADERS = {"Content-Type": "application/json"}
_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


class Reply(NamedTuple):
    """A proxy's answer; status 0 and a `problem` where there is none."""

    status: int
    body: bytes = b""
    problem: str = ""
    base: str = ""
    """The address that was asked."""


def ask(
    url: str | None,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    timeout: float = TIMEOUT,
    body: bytes | None = None,
) -> Reply:
    """The answer at `path` of the proxy at `url`, by default the one that runs on this machine.

    `timeout` is in seconds. A `body` is JSON.
    """
    base = (url if url is not None else default_url()).rstrip("/")
    headers = {**(_HEADERS if body else {}), **({"Authorization": f"Bearer {token}"} if token is not None else {})}
    try:
        connection, prefix = _connection(base, timeout)
        try:
            connection.request(method, prefix + path, body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), f"{base} answered {answer.status}", base)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        hint = "" if url is not None else "; --url names another address"
        shown = redacted(base) if "@" in base else base
        return Reply(0, problem=f"no proxy answers at {shown}: {_reason(error, timeout)}{hint}")


def default_url() -> str:
    """The address of a proxy that runs on this machine, else the one that the settings name."""
    running = find_proxy()
    return running.url if running else configured_url()


class _NoAddress(ValueError):
    """A text that names no server; the message says what is wrong with it."""


def _connection(base: str, timeout: float) -> tuple[HTTPConnection, str]:
    """An open connection to the server of an address, and the path in the address."""
    if "@" in base:
        raise _NoAddress("an address has no user and no password here")
    try:
        parts = urlsplit(base)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in _CONNECTIONS:
        raise _NoAddress("an address has the form http://HOST:PORT")
    connection = _CONNECTIONS[parts.scheme](host, port, timeout=timeout)
    connection.connect()
    return connection, parts.path


def _reason(error: Exception, timeout: float) -> str:
    match error:
        case _NoAddress():
            return str(error)
        case ssl.SSLError():
            return "the TLS handshake failed"
        case socket.gaierror():
            return "there is no such host"
        case TimeoutError():
            return f"no answer within {timeout:g} s"
        case ConnectionRefusedError():
            return "connection refused"
        case OSError(errno=int() as number):
            return os.strerror(number).lower()
    return "what answers there is not a condenser"
