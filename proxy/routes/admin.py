"""`/_condenser/…`: lets an operator see and edit sessions and their memory. Without a token set, it does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from proxy.errors import BadRequest, BodyTooLarge, error_body
from proxy.http.headers import first
from proxy.memory.admin import MAX_HITS, TOP_K, MemoryAdmin
from proxy.services import Services
from proxy.sessions.admin import Admin, Document
from proxy.sessions.session import MAIN
from proxy.store.base import StoreError, StoreKey

_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_NUMBER = re.compile(r"[0-9]{1,4}")
_JSON = "application/json"
_MAX_BODY = 64 * 1024  # bytes of a body
_MAX_IMPORT = 1024 * 1024
_MEMORY_METHODS = {"": "GET, POST, DELETE", "export": "GET", "search": "GET", "import": "POST"}
_PRIVATE = {"cache-control": "no-store"}


async def admin(request: Request) -> Response:
    """Answers a request that has the token: 404 if the settings have no token, 401 if the request has a wrong one."""
    services: Services = request.app.state.services
    if services.admin.token is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    authorization = first(request.scope["headers"], b"authorization") or ""
    if not services.admin.allows(authorization.encode("latin-1")):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, headers={"www-authenticate": "Bearer"})
    try:
        document = await _answer(request, services)
    except StoreError as error:
        body = error_body(f"The store does not answer: {error.reason}.", "server_error", None, error.reason)
        return Response(body, HTTPStatus.SERVICE_UNAVAILABLE, media_type=_JSON)
    if document is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response(json.dumps(document), headers=_PRIVATE, media_type=_JSON)


async def _answer(request: Request, services: Services) -> Document | list[Document] | None:
    """The document at the path, or None."""
    # The raw path: an id may contain a slash, which is %2F there.
    path = [unquote(part) for part in request.scope["raw_path"].decode("ascii", "replace").split("/")[2:]]
    match path:
        case ["live"] if request.method == "GET":
            return services.live.document()
        case ["sessions", name] if request.method == "GET" and name:
            return await services.admin.find_session(name, request.query_params.get("tenant"))
        case ["sessions", *names] if names and not all(map(_NAME.fullmatch, names)):
            return None
        case ["sessions", tenant, session, "memory", *more]:
            return await _memory(request, services.memory_admin, StoreKey(tenant, session), more)
        case ["sessions", tenant, session, "condensations" | "pins" | "condense" as what, *more]:
            return await _steered(request, services.admin, StoreKey(tenant, session), [what, *more])
    return await _sessions(request, services.admin, path)


async def _sessions(request: Request, admin: Admin, path: list[str]) -> Document | None:
    query = request.query_params
    match request.method, path:
        case "GET", ["stats"]:
            return await admin.stats()
        case "GET", ["sessions"]:
            return await admin.list_sessions(query.get("tenant"), query.get("id"))
        case "GET", ["sessions", tenant, session]:
            return await admin.session(StoreKey(tenant, session))
        case "DELETE", ["sessions", tenant, session]:
            return _deleted(await admin.delete(StoreKey(tenant, session)))
        case "DELETE", ["sessions", tenant]:
            return _deleted(await admin.delete_tenant(tenant))
        case _, ["live"] | ["stats"] | ["sessions"]:
            raise _not_allowed("GET")
        case _, ["sessions", _] | ["sessions", _, _]:
            raise _not_allowed("GET, DELETE")
    return None


async def _steered(request: Request, admin: Admin, key: StoreKey, path: list[str]) -> Document | None:
    match request.method, path:
        case "POST", ["condensations", condensation, "revert"]:
            return await admin.revert(key, condensation)
        case "POST", ["pins"]:
            return await admin.pin(key, await _body(request))
        case "DELETE", ["pins", pin]:
            return await admin.unpin(key, pin)
        case "POST", ["condense"]:
            return await admin.condense(key, await _body(request, if_empty={}))
        case _, ["condensations", _, "revert"] | ["pins"] | ["condense"]:
            raise _not_allowed("POST")
        case _, ["pins", _]:
            raise _not_allowed("DELETE")
    return None


async def _memory(
    request: Request, memory: MemoryAdmin, key: StoreKey, more: list[str]
) -> Document | list[Document] | None:
    match request.method, more:
        case "GET", []:
            return await memory.list_cards(key)
        case "GET", ["export"]:
            return await memory.export_cards(key)
        case "GET", ["search"]:
            return await memory.search(key, *_search(request.query_params))
        case "POST", []:
            return await memory.add(key, await _body(request))
        case "POST", ["import"]:
            return await memory.import_cards(key, await _body(request, _MAX_IMPORT))
        case "DELETE", []:
            return await memory.forget(key)
        case "DELETE", [card]:
            return await memory.forget(key, card)
    if len(more) > 1:
        return None
    raise _not_allowed(_MEMORY_METHODS.get("".join(more), "DELETE"))


def _not_allowed(methods: str) -> HTTPException:
    """The error for a path that has only these methods."""
    return HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": methods})


def _search(query: Mapping[str, str]) -> tuple[str, str, int]:
    """The text to search for, the branch, and the number of hits; raises `BadRequest`."""
    text, top_k = query.get("query", ""), query.get("top_k", str(TOP_K))
    if not text.strip():
        raise BadRequest("'query' must say what to search.", param="query")
    if not _NUMBER.fullmatch(top_k) or not 0 < int(top_k) <= MAX_HITS:
        raise BadRequest(f"'top_k' must be a number from 1 to {MAX_HITS}.", param="top_k")
    return text, query.get("branch", MAIN), int(top_k)


async def read_body(request: Request, largest: int, name: str = "request body") -> bytes:
    """The body of a request; raises `BodyTooLarge` if it has more than `largest` bytes."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > largest:
            raise BodyTooLarge(f"The {name} is larger than {largest:,} bytes.")
    return data


async def _body(request: Request, largest: int = _MAX_BODY, *, if_empty: object = None) -> object:
    """The JSON body of a request, of at most `largest` bytes; raises `BadRequest` and `BodyTooLarge`.

    `if_empty` is what a body without any bytes means, where it may be missing.
    """
    data = await read_body(request, largest)
    if not data and if_empty is not None:
        return if_empty
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("The request body is no JSON.") from None


def _deleted(count: int) -> Document | None:
    return {"object": "deleted", "sessions": int(count)} if count else None
