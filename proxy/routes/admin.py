"""`/_condenser/…`: sessions for an operator. Without a token that opens it, nothing of it is there."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from proxy.admin import Admin
from proxy.errors import error_body
from proxy.headers import first
from proxy.services import Services
from proxy.store.base import SessionKey, StoreError

PREFIX = "/_condenser/"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_JSON = "application/json"
_PRIVATE = {"cache-control": "no-store"}


async def admin(request: Request) -> Response:
    """Answers whoever has the token: 404 where there is none at all, 401 for a wrong one."""
    services: Services = request.app.state.services
    if services.admin.closed:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    given = first(request.scope["headers"], b"authorization") or ""
    if not services.admin.allows(given.encode("latin-1")):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, headers={"www-authenticate": "Bearer"})
    try:
        document = await _answer(request, services.admin)
    except StoreError as error:
        body = error_body(f"The store does not answer: {error.reason}.", "server_error", None, error.reason)
        return Response(body, HTTPStatus.SERVICE_UNAVAILABLE, media_type=_JSON)
    if document is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response(json.dumps(document), headers=_PRIVATE, media_type=_JSON)


async def _answer(request: Request, admin: Admin) -> dict[str, Any] | None:
    """The document at a path; None where there is nothing."""
    query = request.query_params
    path = str(request.scope["path"]).removeprefix(PREFIX).split("/")
    match request.method, path:
        case "GET", ["stats"]:
            return await admin.stats()
        case "GET", ["sessions"]:
            return await admin.listed(query.get("tenant"), query.get("id"))
        case "GET" | "DELETE", ["sessions", *names] if names and not all(map(_NAME.fullmatch, names)):
            return None
        case "GET", ["sessions", tenant, session]:
            return await admin.session(SessionKey(tenant, session))
        case "DELETE", ["sessions", tenant, session]:
            return _deleted(await admin.delete(SessionKey(tenant, session)))
        case "DELETE", ["sessions", tenant]:
            return _deleted(await admin.delete_tenant(tenant))
        case _, ["stats"] | ["sessions"] | ["sessions", _] | ["sessions", _, _]:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED)
    return None


def _deleted(count: int) -> dict[str, Any] | None:
    return {"object": "deleted", "sessions": int(count)} if count else None
