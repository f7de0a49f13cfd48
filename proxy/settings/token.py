"""The token of the admin API: from the settings, else from a file beside the embedded store; and what it signs.

    cookie, code   EXPIRES.NONCE.MAC   MAC over the first two, with a key made from the token
    form           MAC over the cookie, in each form, because pages on other ports of this host get the same cookies

The cookie is that of a user who signed in, and a code signs in once. Every replica with the same token accepts them.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from proxy.settings import Settings
from proxy.store import path_beside, read_or_create

TOKEN_FILE = "admin.token"  # noqa: S105
COOKIE_LIFE = 12 * 3600  # seconds after which a user must sign in again
CODE_LIFE = 600  # seconds for which a code can be used


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


# -- what it signs


def new_cookie(token: bytes, now: float, nonce: str) -> str:
    """The cookie of a user who signs in at `now`, in seconds since the epoch."""
    return _signed(token, "cookie", f"{int(now) + COOKIE_LIFE}.{nonce}")


def is_valid_cookie(cookie: str, token: bytes, now: float) -> bool:
    """Whether the cookie was signed with the token and has not expired."""
    return _is_valid(cookie, token, "cookie", now)


def new_code(token: bytes, now: float, nonce: str) -> str:
    """A code for the address of a sign-in link. Whoever takes it must note that it was used."""
    return _signed(token, "code", f"{int(now) + CODE_LIFE}.{nonce}")


def is_valid_code(code: str, token: bytes, now: float) -> bool:
    return _is_valid(code, token, "code", now)


def form_mac(token: bytes, cookie: str) -> str:
    return _mac(token, "form", cookie)


def _signed(token: bytes, purpose: str, claim: str) -> str:
    return f"{claim}.{_mac(token, purpose, claim)}"


def _is_valid(signed: str, token: bytes, purpose: str, now: float) -> bool:
    claim, _, mac = signed.rpartition(".")
    expires = claim.partition(".")[0]
    is_signed = secrets.compare_digest(mac.encode(), _mac(token, purpose, claim).encode())
    return is_signed and expires.isdecimal() and now < int(expires)


def _mac(token: bytes, purpose: str, text: str) -> str:
    key = blake2b(token, digest_size=32, person=b"dashboard").digest()
    return blake2b(f"{purpose}:{text}".encode(), key=key, digest_size=24).hexdigest()
