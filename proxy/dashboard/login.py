"""Who may see the pages: a cookie that the admin token has signed, so that any replica knows it. Pure.

cookie   EXPIRES.NONCE.MAC     MAC over the first two, by a key made from the token
form     MAC over the cookie   in each form, because a page of another port of this host has the same cookies
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

LIFETIME = 12 * 3600
"""Seconds after which one has to sign in again."""


def issue(token: bytes, now: float, nonce: str) -> str:
    """The cookie of somebody who has shown the token at `now`, in seconds since the epoch."""
    claim = f"{int(now) + LIFETIME}.{nonce}"
    return f"{claim}.{_mac(token, 'cookie', claim)}"


def is_valid(cookie: str, token: bytes, now: float) -> bool:
    """Whether the token has signed the cookie and it has not expired."""
    claim, _, mac = cookie.rpartition(".")
    expires = claim.partition(".")[0]
    is_signed = compare_digest(mac.encode(), _mac(token, "cookie", claim).encode())
    return is_signed and expires.isdecimal() and now < int(expires)


def form_token(cookie: str, token: bytes) -> str:
    """What the forms of a page carry that was sent to the holder of this cookie."""
    return _mac(token, "form", cookie)


def _mac(token: bytes, purpose: str, text: str) -> str:
    key = blake2b(token, digest_size=32, person=b"dashboard").digest()
    return blake2b(f"{purpose}:{text}".encode(), key=key, digest_size=24).hexdigest()
