"""The token of the admin API: from the settings, else from a file beside the embedded store."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from proxy.settings import Settings
from proxy.store import path_beside, read_or_create

TOKEN_FILE = "admin.token"  # noqa: S105


def admin_token(settings: Settings) -> str | None:
    """The token of the settings, else that of the token file, which is created if necessary; None if there is neither.

    Only a proxy that listens on a loopback address has a token file.
    """
    if settings.admin.token is not None:
        return settings.admin.token.get_secret_value()
    path = token_file(settings)
    return (read_or_create(path).decode("ascii", "replace").strip() or None) if path else None


def token_file(settings: Settings) -> Path | None:
    """The file that holds the token of a proxy with these settings; None if there is no such file."""
    if settings.admin.token is not None or not is_loopback(settings.admin_host):
        return None
    return path_beside(settings.store.url, TOKEN_FILE)


def known_token(settings: Settings, url: str | None = None) -> str | None:
    """The token for a client of the proxy at `url`: from the settings, else from the token file if that can be read.

    The file's token is never sent to another machine, because only a proxy on this one can have made it.
    """
    if settings.admin.token is not None:
        return settings.admin.token.get_secret_value()
    try:
        is_local = url is None or is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        is_local = False
    path = path_beside(settings.store.url, TOKEN_FILE)
    return read_token(path) if path and is_local else None


def read_token(path: Path) -> str | None:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host; any name other than `localhost` counts as reachable by others."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
