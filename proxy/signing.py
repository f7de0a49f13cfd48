"""What the admin token signs: the cookie of a user who has signed in, and a code that signs in once.

    cookie, code   EXPIRES.NONCE.MAC   MAC over the first two, with a key made from the token
    form           MAC over the cookie, in each form, because pages on other ports of this host get the same cookies

Every replica with the same token accepts them.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

COOKIE_LIFE = 12 * 3600  # seconds after which a user must sign in again
CODE_LIFE = 600  # seconds for which a code can be used


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
