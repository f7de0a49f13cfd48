"""Signed logins (JWTs), whose signature nobody here checks."""

import json
from base64 import urlsafe_b64encode


def login(subject: str, issuer: str = "https://auth.example", *, signature: str = "signed", **claims: object) -> str:
    """A login of a subject; `claims` are what changes when it is refreshed."""
    parts = {"alg": "RS256", "typ": "JWT"}, {"iss": issuer, "sub": subject, **claims}
    encoded = [urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, signature])
