"""The proxy's own routes: liveness, readiness, metrics, and `/_condenser/…` for operators and callers.

There an operator sees and edits sessions and their memory; without a token set, that does not exist. Below
`/_condenser/own/` a caller reads its own sessions, with the credential that its requests to models have.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import starmap
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from proxy import VERSION
from proxy.callers.operators import UNKNOWN, Operator, Operators, opens_handles
from proxy.callers.tenants import ALWAYS
from proxy.conversations.admin import MAX_HITS, TOP_K, Document, request_document
from proxy.conversations.noted import NOTED
from proxy.conversations.own import OwnSessions
from proxy.conversations.session import MAIN
from proxy.errors import BadRequest, BodyTooLarge, CredentialUnproven, NotPermitted, error_body
from proxy.http.headers import first
from proxy.log import LINE
from proxy.quoting import label, redacted
from proxy.servers import SHOWN, LessonScope
from proxy.servers.upstream.choice import shown
from proxy.servers.windows import SOURCE
from proxy.services import Services
from proxy.settings.profile import ANY, Profile
from proxy.store.base import StoreError, StoreKey
from proxy.telemetry import KEPT, SLOT, ArrivalKind, Arrivals
from strategies.core.handles import handle_in


async def livez(_request: Request) -> Response:
    """Answers as long as the event loop runs; checks nothing else."""
    return JSONResponse({"status": "ok"})


async def readyz(request: Request) -> Response:
    """Whether requests can be served, which does not need the store, and the state of each part.

    The status is 503 while the server stops. Only an operator sees the addresses of upstream and store.
    """
    if request.app.state.drain.has_begun:
        return JSONResponse({"status": "draining", "version": VERSION}, HTTPStatus.SERVICE_UNAVAILABLE)
    services: Services = request.app.state.services
    found = await readiness(services)
    operator = await _operator(request)
    if operator is None or not operator.may("GET"):
        del found["upstream"], found["store"]["url"]
        for upstream in found["upstreams"].values():
            del upstream["url"]
    return JSONResponse(found)


async def root(request: Request) -> Response:
    """Answers `HEAD /`, with which clients probe an address, and leads browsers to the pages, where there are any."""
    services: Services = request.app.state.services
    is_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    is_here = (admin := services.settings.admin.address) is None or request.scope["server"][1] == admin[1]
    if is_browser and is_here and not services.operators.is_closed:
        return RedirectResponse("_condenser/", HTTPStatus.SEE_OTHER, _PRIVATE)
    if request.method != "HEAD":
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response()


async def metrics(request: Request) -> Response:
    """The metrics, for everyone; where callers need keys, for operators alone, because tenants have names there."""
    services: Services = request.app.state.services
    if services.keys is not None:
        await check_operator(request)
    return Response(services.telemetry.exposition(), media_type="text/plain; version=0.0.4")


async def readiness(services: Services) -> dict[str, Any]:
    """The state of each part; addresses are shown without credentials."""
    try:
        async with asyncio.timeout(services.settings.store.timeout):
            await services.store.ping()
        store = await services.stored.why_unwritable(is_suspected=True) or "ok"
    except StoreError as error:
        store = error.reason
    except TimeoutError:
        store = "store-timeout"
    standing, made = services.loops.standing(), services.policies.table.made
    return {
        "status": "ok" if store == "ok" and not standing else "degraded",
        "version": VERSION,
        "upstream": shown(services.destinations),
        "upstreams": {
            each.name: {"url": redacted(each.base_url), "state": services.upstream.silent.get(each.base_url, "ok")}
            for each in services.destinations
        },
        "strategy": services.settings.strategy,
        "store": {"url": redacted(services.settings.store.url), "state": store},
        "standing_still": standing,
        "tokenizers": services.tokenizers.states(),
        "models": {
            "made": made.isoformat(),
            "days": (datetime.fromtimestamp(services.clock(), UTC).date() - made).days,
        },
    }


_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}")
_NUMBER = re.compile(r"[0-9]{1,4}")
_JSON = "application/json"
_MAX_BODY = 64 * 1024  # bytes
_MAX_IMPORT = 1024 * 1024
_PRIVATE = {"cache-control": "no-store"}
Answer = Document | list[Document] | None


class Call(NamedTuple):
    """A request with the token: the names in its path, the parameters of its address, and its JSON body."""

    services: Services
    names: Sequence[str]
    query: Mapping[str, str]
    body: object

    @property
    def key(self) -> StoreKey:
        return StoreKey(self.names[0], self.names[1])


async def admin(request: Request) -> Response:
    """Answers an operator; 404 if the settings have no token, 401 if the request's token or key is wrong."""
    services: Services = request.app.state.services
    if services.operators.is_closed:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    await check_operator(request)
    try:
        document = await _answer(request, services)
    except StoreError as error:
        return _store_failed(error)
    if document is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return Response(json.dumps(document), headers=_PRIVATE, media_type=_JSON)


async def check_operator(request: Request) -> None:
    """Notes in the request's line who administers; raises `NotPermitted`, `TooManyAttempts` and, late, 401."""
    operator = await _operator(request)
    request.scope[LINE].operator = operator.name if operator is not None else UNKNOWN
    if operator is None:
        raise HTTPException(HTTPStatus.UNAUTHORIZED, headers={"www-authenticate": "Bearer"})
    check_role(operator, request.method)


async def _operator(request: Request) -> Operator | None:
    """Who sends a request; None, and late, for a wrong token or key. Raises `TooManyAttempts`."""
    operators: Operators = request.app.state.services.operators
    headers = request.scope["headers"]
    if not any(first(headers, name) for name in (b"authorization", b"x-api-key")):
        return None
    return await operators.judged(lambda: operators.by_headers(headers))


def check_role(operator: Operator, method: str) -> None:
    if not operator.may(method):
        what = "may not administer this proxy" if not operator.role else "may only read here"
        raise NotPermitted(f"This key {what}.", param="method" if operator.role else None, code="admin_not_allowed")


async def own(request: Request) -> Response:
    """Answers a caller about its own sessions, if an upstream has accepted its credential lately.

    Where all sessions are one person's, the token for handles opens them too, under `wrap` those of the run.

    Takes a place as a request to a model does, since it reads as much. Raises `ProxyError`.
    """
    services: Services = request.app.state.services
    action = _OWN.get(request.path_params["action"])
    if action is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    if request.method != "POST":
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "POST"})
    owner = services.tenants.owner(request.scope["headers"], request.client.host if request.client else None)
    asked = await _json_body(request)
    place, handles = services.admission.place(owner.tenant), services.settings.handles
    sessions, is_holder = services.own_sessions, opens_handles(handles, request.scope["headers"])
    if is_holder and handles.of_run:
        sessions = replace(sessions, only=services.sums.used)
    try:
        await place.take()
        # Those first that see the caller's credential: a login's tenant is the one that it has there.
        for upstream in sorted(services.destinations, key=lambda each: not each.judges_callers):
            trust = ALWAYS if is_holder else services.callers.trust_in(owner, upstream)
            await trust.look_up(services.stored.patience())
            if trust.may_see_stored:
                break
        else:
            raise CredentialUnproven
        document = await action(replace(sessions, trust=trust), owner.tenant_at(upstream), asked)
    except StoreError as error:
        return _store_failed(error)
    finally:
        place.leave()
    return Response(json.dumps(document), headers=_PRIVATE, media_type=_JSON)


def _store_failed(error: StoreError) -> Response:
    body = error_body(f"The store does not answer: {error.reason}.", "server_error", None, error.reason)
    return Response(body, HTTPStatus.SERVICE_UNAVAILABLE, media_type=_JSON)


async def read_body(request: Request, largest: int, name: str = "request body") -> bytes:
    """The body of a request; raises `BodyTooLarge` if it has more than `largest` bytes."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > largest:
            raise BodyTooLarge(f"The {name} is larger than {largest:,} bytes.")
    return data


async def read(services: Services, path: str, query: str) -> Answer:
    """What `GET` at a path below `/_condenser/` answers, without a server; None where nothing is."""
    scope = {"type": "http", "method": "GET", "headers": [], "raw_path": path.encode(), "query_string": query.encode()}
    return await _answer(Request(scope), services)


async def _answer(request: Request, services: Services) -> Answer:
    # The raw path: an id may contain a slash, which is %2F there.
    parts = [unquote(part) for part in request.scope["raw_path"].decode("ascii", "replace").split("/")[2:]]
    for path, methods in _ROUTES.items():
        wanted = path.split("/")
        if len(wanted) != len(parts) or any(word not in ("*", part) for word, part in zip(wanted, parts, strict=True)):
            continue
        names = [part for word, part in zip(wanted, parts, strict=True) if word == "*"]
        is_id = path == "sessions/*" and request.method == "GET" and names[0]
        if not is_id and not all(map(_NAME.fullmatch, names)):
            return None
        if request.method not in methods:
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": ", ".join(methods)})
        body = await _json_body(request) if request.method == "POST" else None
        return await methods[request.method](Call(services, names, request.query_params, body))
    return None


async def _json_body(request: Request) -> object:
    """The JSON body of a request; {} if it is empty. Raises `BadRequest` and `BodyTooLarge`."""
    is_import = request.scope["path"].endswith("/memory/import")
    data = await read_body(request, _MAX_IMPORT if is_import else _MAX_BODY)
    try:
        return json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise BadRequest("The request body is no JSON.") from None


def _hours(call: Call) -> int:
    hours = call.query.get("hours", "24")
    if not _NUMBER.fullmatch(hours) or not 0 < int(hours) * 3600 <= KEPT:
        raise BadRequest(f"'hours' must be a number from 1 to {KEPT // 3600}.", param="hours")
    return int(hours)


async def _sums(call: Call) -> Answer:
    """The sums of the last hours, one row for each slot that has requests, and those of this replica."""
    sums = call.services.sums
    rows = [{"at": at, **found} for at, found in await sums.since(_hours(call) * 3600)]
    replica = {"started": sums.started, **sums.total}
    return {
        "object": "sums",
        "slot": SLOT,
        "currency": call.services.settings.currency,
        "replica": replica,
        "used": list(sums.used),
        "data": rows,
    }


async def _requests(call: Call) -> Answer:
    """The requests that a figure of the sums counts, newest first."""
    show, hours = call.query.get("show", ""), _hours(call)
    if show not in NOTED:
        raise BadRequest(f"'show' must be one of {', '.join(NOTED)}.", param="show")
    noted = await call.services.sums.noted_in(show, call.services.clock() - hours * 3600)
    rows = [{**each.key._asdict(), **request_document(each.record)} for each in noted]
    return {"object": "list", "data": rows}


async def _sessions(call: Call) -> Answer:
    newest, admin = call.query.get("newest"), call.services.admin
    if newest is None:
        return await admin.list_sessions(call.query.get("tenant"), call.query.get("id"))
    if not _NUMBER.fullmatch(newest):
        raise BadRequest("'newest' must be a number of sessions, up to 9999.", param="newest")
    return await admin.list_newest(int(newest))


async def _known(call: Call) -> Answer:
    """A row for each model of an upstream that this worker has served, and for each tenant that was taught of it."""
    services = call.services
    servers, searcher = services.servers, services.searcher
    served = {(kind.model, "", kind.upstream) for kind in services.telemetry.arrived}
    forms, tools = dict(servers.profiles.learned.items()), dict(searcher.known_refusals())
    taught = {scope for scope, _ in servers.learned.known()} | forms.keys() | tools.keys()
    scopes = [*starmap(LessonScope, sorted(served)), *sorted(taught)]
    rows = [_known_row(services, scope, forms.get(scope, ANY), tools.get(scope)) for scope in scopes]
    return {"object": "known", "upstream": shown(services.destinations), "data": rows}


def _known_row(services: Services, scope: LessonScope, form: Profile, tools_until: float | None) -> Document:
    window, learned = services.servers.window(scope), services.servers.learned.window(scope)
    return {
        "model": label(scope.model),
        "tenant": scope.tenant[:SHOWN] or None,
        "upstream": redacted(scope.upstream),
        "window": window.tokens,
        "source": window.source,
        "until": learned.until if learned is not None and window.source == SOURCE else None,
        "forms": {key: value for key, value in form if value != getattr(ANY, key)},
        "refuses_tools_until": tools_until,
    }


async def _arrivals(call: Call) -> Answer:
    """What this process was asked for since it started, by protocol, model, upstream, window and strategy."""
    services = call.services
    rows = list(starmap(_arrivals_row, services.telemetry.arrived.items()))
    return {"object": "arrivals", "started": services.sums.started, "data": rows}


def _arrivals_row(kind: ArrivalKind, found: Arrivals) -> Document:
    return {
        "protocol": kind.protocol,
        "model": label(kind.model),
        "upstream": redacted(kind.upstream),
        "window": kind.window.tokens,
        "source": kind.window.source,
        "strategy": kind.strategy,
        "economy": found.policy.economy,
        "prices": found.policy.prices and asdict(found.policy.prices),
        "cheapest": found.advice and found.advice._asdict(),
        "trigger": found.policy.budget and found.policy.budget.trigger,
        "trigger_by": found.policy.budget and found.policy.budget.cause.value,
        "fullest": found.fullest,
        "sources": sorted(map(label, found.sources)),
        "actions": dict(found.actions),
    }


async def _deleted(deleting: Awaitable[bool]) -> Answer:
    return {"object": "deleted", "sessions": 1} if await deleting else None


async def _drop(call: Call) -> Answer:
    """Drops a line of the ledger, or a memory card by its id."""
    name, now, services = call.names[2], call.query.get("now") == "true", call.services
    dropped = await services.admin.drop(call.key, name, now=now)
    return dropped or await services.memory_admin.forget(call.key, name, now=now)


async def _search(call: Call) -> Answer:
    text, top_k = call.query.get("query", ""), call.query.get("top_k", str(TOP_K))
    if not text.strip():
        raise BadRequest("'query' must say what to search.", param="query")
    if not _NUMBER.fullmatch(top_k) or not 0 < int(top_k) <= MAX_HITS:
        raise BadRequest(f"'top_k' must be a number from 1 to {MAX_HITS}.", param="top_k")
    return await call.services.memory_admin.search(call.key, text, call.query.get("branch", MAIN), int(top_k))


async def _search_own(sessions: OwnSessions, tenant: str, asked: object) -> Document:
    query, session, top_k = _text(asked, "query"), _session_in(asked), _members(asked).get("top_k", TOP_K)
    if not isinstance(top_k, int) or isinstance(top_k, bool) or not 0 < top_k <= MAX_HITS:
        raise BadRequest(f"'top_k' must be a number from 1 to {MAX_HITS}.", param="top_k")
    return await sessions.search(tenant, session, query, top_k)


async def _expand_own(sessions: OwnSessions, tenant: str, asked: object) -> Document:
    handle = handle_in(_text(asked, "handle"))
    if handle is None:
        raise BadRequest(
            "'handle' must be 8 hexadecimal digits, as the line of what was left out has them.", param="handle"
        )
    return await sessions.expand(tenant, _session_in(asked), handle)


def _members(asked: object) -> Mapping[str, object]:
    if not isinstance(asked, Mapping):
        raise BadRequest("The request body must be a JSON object.")
    return asked


def _text(asked: object, name: str) -> str:
    value = _members(asked).get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(f"'{name}' must be a text that is not empty.", param=name)
    return value


def _session_in(asked: object) -> str | None:
    return None if _members(asked).get("session") is None else _text(asked, "session")


_OWN: Mapping[str, Callable[[OwnSessions, str, object], Awaitable[Document]]] = {
    "search": _search_own,
    "expand": _expand_own,
}

_ROUTES: Mapping[str, Mapping[str, Callable[[Call], Awaitable[Answer]]]] = {
    "sums": {"GET": _sums},
    "requests": {"GET": _requests},
    "arrivals": {"GET": _arrivals},
    "known": {"GET": _known},
    "stats": {"GET": lambda call: call.services.admin.stats()},
    "sessions": {"GET": _sessions},
    "sessions/*": {
        "GET": lambda call: call.services.admin.find_session(call.names[0], call.query.get("tenant")),
        "DELETE": lambda call: call.services.admin.delete_tenant(call.names[0]),
    },
    "sessions/*/*": {
        "GET": lambda call: call.services.admin.session(call.key),
        "DELETE": lambda call: _deleted(call.services.admin.delete(call.key)),
    },
    "sessions/*/*/condensations/*/revert": {
        "POST": lambda call: call.services.admin.revert(call.key, call.names[2]),
        "DELETE": lambda call: call.services.admin.revert(call.key, call.names[2], undo=True),
    },
    "sessions/*/*/ledger/*": {"DELETE": _drop},
    "sessions/*/*/pins": {"POST": lambda call: call.services.admin.pin(call.key, call.body)},
    "sessions/*/*/pins/*": {"DELETE": lambda call: call.services.admin.unpin(call.key, call.names[2])},
    "sessions/*/*/memory": {
        "GET": lambda call: call.services.memory_admin.list_cards(call.key),
        "POST": lambda call: call.services.memory_admin.add(call.key, call.body),
        "DELETE": lambda call: call.services.memory_admin.forget(call.key),
    },
    "sessions/*/*/memory/export": {"GET": lambda call: call.services.memory_admin.export_cards(call.key)},
    "sessions/*/*/memory/search": {"GET": _search},
    "sessions/*/*/memory/import": {"POST": lambda call: call.services.memory_admin.import_cards(call.key, call.body)},
    "sessions/*/*/memory/*": {"DELETE": lambda call: call.services.memory_admin.forget(call.key, call.names[2])},
}
"""The action for each method at each path; `*` stands for a name."""
