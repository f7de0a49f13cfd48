"""An operator with the token, who asks a running proxy at `/_condenser/`."""

from __future__ import annotations

import json

from tests.support import wire
from tests.support.stage import Stage
from tests.support.wire import Answer

TOKEN = "operator-token"
SESSIONS = "/_condenser/sessions"


def admin(
    stage: Stage, path: str = SESSIONS, method: str = "GET", given: object = None, *, token: str | None = TOKEN
) -> Answer:
    """The answer at a path, asked with a JSON body where one is `given`."""
    body = b"" if given is None else json.dumps(given).encode()
    headers = [] if token is None else [("Authorization", f"Bearer {token}")]
    return wire.request(stage.proxy.url, method, path, body, headers)
