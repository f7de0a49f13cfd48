"""An operator with the token, who asks a running proxy at `/_condenser/`."""

import json
from collections.abc import Mapping
from typing import Any

from tests.support import wire
from tests.support.stage import Stage
from tests.support.wire import Answer

TOKEN = "operator-token"
SESSIONS = "/_condenser/sessions"


def admin(
    stage: Stage, path: str = SESSIONS, method: str = "GET", given: object = None, *, token: str | None = TOKEN
) -> Answer:
    """The answer at a path of the stage's proxy, asked with a JSON body where one is `given`."""
    return operator(stage.proxy.url, path, method, given, token=token)


def operator(
    url: str, path: str = SESSIONS, method: str = "GET", given: object = None, *, token: str | None = TOKEN
) -> Answer:
    """As `admin`, of the proxy at this address."""
    body = b"" if given is None else json.dumps(given).encode()
    headers = [] if token is None else [("Authorization", f"Bearer {token}")]
    return wire.request(url, method, path, body, headers)


def place_of(row: Mapping[str, Any]) -> str:
    """The path of a session, as a listing or the session's own document names it."""
    return f"{SESSIONS}/{row['tenant']}/{row['session']}"


def only_place(url: str, *, token: str | None = TOKEN) -> str:
    """The path of the only session that a proxy knows."""
    (row,) = operator(url, token=token).json()["data"]
    return place_of(row)


def only_session(url: str, *, token: str | None = TOKEN) -> dict[str, Any]:
    """What an operator sees of the only session."""
    document: dict[str, Any] = operator(url, only_place(url, token=token), token=token).json()
    return document
