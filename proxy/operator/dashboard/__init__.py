"""The dashboard at `/_condenser/`: what was condensed, why, and how to take it back. Jinja2 renders the pages here.

Without an admin token the pages and the actions of their forms do not exist.

A page is made in three steps: this module reads the same data as the admin API, `overview` and `session` turn it into
what is drawn, and a template writes the HTML. The script of a page only fetches it again every few seconds and replaces
what has changed.

The text of users and models is never more than text: templates escape it, no Markdown is rendered, no links are made of
it, and the content security policy allows only the one script file.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from http import HTTPStatus
from itertools import starmap
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from proxy.callers.operators import UNKNOWN, Operator
from proxy.controls import Controls
from proxy.conversations.admin import ShownSession
from proxy.conversations.drops import ledger_of
from proxy.conversations.noted import NO_SESSION, NOTED, NotedRequest, newest_requests, with_sessions
from proxy.conversations.requests import RequestRecord
from proxy.conversations.session import title_of
from proxy.conversations.totals import MILLION, notices, sentence
from proxy.errors import BadRequest
from proxy.log import LINE
from proxy.operator.dashboard import overview, session
from proxy.operator.routes import check_role, read_body, readiness
from proxy.protocols.chat import ChatCounter
from proxy.servers import LessonScope
from proxy.services import Services
from proxy.settings.token import CODE_LIFE, COOKIE_LIFE, form_mac, is_valid_code, is_valid_cookie, new_cookie
from proxy.store.base import StoreError, StoreKey
from proxy.turn.layer import Guard
from strategies.core.cards import TYPES
from strategies.core.transcript import PIN_SHARE

HERE = Path(__file__).parent
COOKIE = "condenser-dashboard"
_MAX_CARDS = 200
_MAX_ROWS = 200  # requests of one session in its table
_LISTED = 100  # sessions whose requests are listed
_NEWEST = 300  # requests of each ring among which the newest sessions of the overview are looked for
TABS = {"now": "Now", "condensations": "Condensations", "requests": "Requests", "memory": "Memory"}
_MAX_FORM = 8 * 1024  # bytes
_MAX_DIGITS = 9
_STATIC = {"style.css": "text/css", "app.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
Form = Mapping[str, str]


async def dashboard(request: Request) -> Response:
    """Answers a request: with the form to sign in if the user has not, and 403 to a form from another site's page."""
    try:
        return await _answered(request, request.app.state.services)
    except StoreError as error:
        return _page("unavailable.html", request, "", HTTPStatus.SERVICE_UNAVAILABLE, reason=error.reason)


async def _answered(request: Request, services: Services) -> Response:
    if services.operators.is_closed:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    path = request.scope["path"].removeprefix("/_condenser/").removeprefix("pages/")
    if path.startswith("static/"):
        return _static(path.removeprefix("static/"))
    cookie = request.cookies.get(_cookie_name(request), "")
    operator, line = await _signed_in_as(cookie, services), request.scope[LINE]
    line.operator, holder = operator.name if operator is not None else UNKNOWN, services.operators.holder
    code = request.query_params.get("code", "")
    # Programs that look at links before a person opens them ask for the head. One who is signed in uses it up too.
    is_opened = not path and code and request.method == "GET"
    if is_opened and await _is_first_use(code, holder.secret, services):
        line.operator = holder.name
        return _with_cookie(RedirectResponse("./", HTTPStatus.SEE_OTHER, _HEADERS), request, services, holder)
    if operator is None and (path, request.method) != ("login", "POST"):
        return _sign_in(request)
    mac = form_mac((operator or holder).secret, cookie)
    if request.method == "POST":
        return await _posted(request, services, path, mac, operator)
    if request.method not in {"GET", "HEAD"}:
        raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers={"allow": "GET, POST"})
    return await _shown(request, services, path, mac)


async def _posted(request: Request, services: Services, path: str, mac: str, operator: Operator | None) -> Response:
    """Does what a form says, of which `mac` is the sign of the dashboard's own pages."""
    data = await read_body(request, _MAX_FORM, "form")
    form = {name: values[-1] for name, values in parse_qs(data.decode("utf-8", "replace")).items()}
    # Only forms from the dashboard's own pages are accepted; browsers say where a form comes from.
    origin = request.headers.get("origin", "")
    if not origin or urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    if path == "login":
        return await _signed_in(request, services, form)
    if not secrets.compare_digest(form.get("form", "").encode(), mac.encode()):
        raise HTTPException(HTTPStatus.FORBIDDEN)
    if path != "logout" and operator is not None:
        check_role(operator, request.method)
    return await _acted(request, services, path, form)


def _sign_in(request: Request, *, failed: bool = False) -> Response:
    """The form to sign in; programs, which do not ask for HTML, get the error of the admin API."""
    if "text/html" not in request.headers.get("accept", ""):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, headers={"www-authenticate": "Bearer"})
    response = _page("login.html", request, "", HTTPStatus.UNAUTHORIZED, failed=failed)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _static(name: str) -> Response:
    if name not in _STATIC:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return FileResponse(HERE / "static" / name, media_type=_STATIC[name], headers=_HEADERS)


def _cookie_name(request: Request) -> str:
    """The name has the port, because browsers send cookies to all ports of a host."""
    return f"{COOKIE}-{request.url.port or 'default'}"


def _cookie_path(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/_condenser"


async def _signed_in(request: Request, services: Services, form: Form) -> Response:
    def find() -> Operator | None:
        found = services.operators.by_text(form.get("token", ""))
        return found if found is not None and found.role else None

    if (operator := await services.operators.judged(find)) is None:
        return _sign_in(request, failed=True)
    request.scope[LINE].operator = operator.name
    return _with_cookie(RedirectResponse("../", HTTPStatus.SEE_OTHER, _HEADERS), request, services, operator)


def _with_cookie(response: Response, request: Request, services: Services, operator: Operator) -> Response:
    cookie = new_cookie(operator.secret, services.clock(), secrets.token_urlsafe(16))
    peer, path = request.client.host if request.client else None, _cookie_path(request)
    secure = Guard(services.settings).is_over_tls(dict(request.headers.raw), peer)
    response.set_cookie(
        _cookie_name(request), cookie, COOKIE_LIFE, path=path, httponly=True, samesite="strict", secure=secure
    )
    return response


async def _is_first_use(code: str, token: bytes, services: Services) -> bool:
    """Whether a code of a sign-in link is valid, and nobody has used it, here or at another replica."""
    if not is_valid_code(code, token, services.clock()):
        return False
    digest, user = blake2b(code.encode(), digest_size=16).hexdigest(), secrets.token_hex(16)
    return await services.stored.in_time(services.stored.store.claim("dashboard", digest, user, CODE_LIFE))


async def _signed_in_as(cookie: str, services: Services) -> Operator | None:
    for operator in services.operators:
        if operator.role and is_valid_cookie(cookie, operator.secret, services.clock()):
            # `Facts.get` would take a store that is out for one that knows of no sign-out.
            out = await services.stored.in_time(services.stored.store.get_fact(_signed_out(cookie)))
            return operator if out is None else None
    return None


async def _ended(request: Request, services: Services) -> Response:
    """Ends the cookie, here and on every replica."""
    cookie = request.cookies.get(_cookie_name(request), "")
    if not await services.stored.facts.put(_signed_out(cookie), b"1", COOKIE_LIFE, "that a user has signed out"):
        return _page("unavailable.html", request, "", HTTPStatus.SERVICE_UNAVAILABLE, reason="store-error")
    response = RedirectResponse("../", HTTPStatus.SEE_OTHER, _HEADERS)
    response.delete_cookie(_cookie_name(request), path=_cookie_path(request))
    return response


def _signed_out(cookie: str) -> str:
    """The name of the fact that the user of a cookie has signed out."""
    return f"signed-out-{blake2b(cookie.encode(), digest_size=16).hexdigest()}"


# Actions of forms


async def _acted(request: Request, services: Services, path: str, form: Form) -> Response:
    if path == "logout":
        return await _ended(request, services)
    page, *key = path.split("/")
    if page != "sessions" or len(key) != len(StoreKey._fields):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    action = _ACTIONS.get(form.get("do", ""))
    if action is None:
        raise BadRequest("The form does not say what to do.", param="do")
    request.scope[LINE].deed = form["do"]
    if not await action(services, StoreKey(*key), form):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    if form["do"] == "delete":
        return RedirectResponse("../../sessions", HTTPStatus.SEE_OTHER, _HEADERS)
    back = {name: form[name] for name in ("tab", "branch", "from") if form.get(name)} | {"done": form["do"]}
    place = ""
    if form["do"] in ("pin", "unpin") and (at := form.get("message", "")).isdecimal():
        back["at"], place = at, f"#m-{at}"
    elif form["do"] in _PLACES:
        place = f"#{_PLACES[form['do']]}-{quote(form.get('id', ''))}"
    return RedirectResponse(f"{key[1]}?{urlencode(back)}{place}", HTTPStatus.SEE_OTHER, _HEADERS)


def _place_in(form: Form) -> dict[str, object]:
    return {"message": _number(form.get("message", ""), "message"), "branch": form.get("branch", "")}


def _number(text: str, name: str) -> int | None:
    """A whole number; None if it is none. Raises `BadRequest` for one that no message can have."""
    if len(text) > _MAX_DIGITS:
        raise BadRequest(f"'{name}' is too long for a number.", param=name)
    return int(text) if text.isdecimal() else None


def _page_number(query: Form) -> int:
    return _number(query.get("page", "1"), "page") or 1


def _card_in(form: Form) -> dict[str, str]:
    return {"content": form.get("content", ""), "type": form.get("type", "")}


_ACTIONS: Mapping[str, Callable[[Services, StoreKey, Form], Awaitable[object]]] = {
    "revert": lambda services, key, form: services.admin.revert(key, form.get("id", "")),
    "restore": lambda services, key, form: services.admin.revert(key, form.get("id", ""), undo=True),
    "drop": lambda services, key, form: services.admin.drop(key, form.get("id", ""), now="now" in form),
    "pin": lambda services, key, form: services.admin.pin(key, _place_in(form)),
    "unpin": lambda services, key, form: services.admin.unpin(key, form.get("id", "")),
    "forget": lambda services, key, form: services.memory_admin.forget(key, form.get("id") or "-", now="now" in form),
    "remember": lambda services, key, form: services.memory_admin.add(key, _card_in(form)),
    "edit": lambda services, key, form: services.memory_admin.add(key, _card_in(form), replaces=form.get("id", "")),
    "delete": lambda services, key, _form: services.admin.delete(key),
}
"""The actions of buttons, by the member `do` of their forms; a false result means that there is no such thing."""
_PLACES = {"revert": "c", "restore": "c", "drop": "l"}
"""What an action comes back to: the beginning of the name of its place on the page."""


# Pages


async def _shown(request: Request, services: Services, path: str, form: str) -> Response:
    query, admin = request.query_params, services.admin
    values: dict[str, Any]
    match path.split("/"):
        case [""]:
            return await _overview(request, services, form)
        case ["requests"]:
            return await _requests(request, services, form)
        case ["sessions"]:
            is_newest = not any(query.get(name) for name in ("tenant", "q", "sort"))
            number = _page_number(query)
            first, last = (number - 1) * overview.PAGE, number * overview.PAGE
            newest = admin.list_newest(last + 1 - first, first) if is_newest else None
            listed_rows = await (newest or admin.list_sessions(query.get("tenant") or None))
            rows = overview.sessions(listed_rows["data"], query.get("q", ""), query.get("sort", ""))
            rows = rows if is_newest else rows[first:]
            values = {"rows": rows[: overview.PAGE], "has_more": len(rows) > overview.PAGE, "page": number}
            values |= {"unreadable": listed_rows["unreadable"], "tenants": len({row["tenant"] for row in rows})}
            return _page("sessions.html", request, form, query=query, **values)
        case ["sessions", tenant, name]:
            key = StoreKey(tenant, name)
            # An open page asks every few seconds, and reading a whole session takes time.
            version = blake2b(f"{await admin.version(key)} {form} {query}".encode(), digest_size=12).hexdigest()
            if request.headers.get("if-none-match", "").removeprefix("W/") == f'"{version}"':
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=_HEADERS)
            read = await admin.shown(key)
            if read is not None:
                response = await _session(request, services, key, read, form)
                response.headers["etag"] = f'"{version}"'
                return response
    raise HTTPException(HTTPStatus.NOT_FOUND)


async def _requests(request: Request, services: Services, form: str) -> Response:
    query, admin, size = request.query_params, services.admin, overview.LISTED
    show, number, within = query.get("show", ""), _page_number(query), _range(query, "")
    if is_noted := show in NOTED:
        noted = await services.sums.noted_in(show, overview.begin(within, services.clock()))
        unread = {"id": "", "title": ""}
        listed = [
            overview.ListedRequest({"tenant": key.tenant, "session": key.name, **unread}, one) for key, one in noted
        ]
    else:
        newest = starmap(overview.ListedRequest, await newest_requests(admin, _LISTED))
        listed = sorted(newest, key=lambda one: -one.record.at)
    found = overview.requests(listed, query, admin.names_of)
    rows: Sequence[tuple[Any, RequestRecord]] = found[(number - 1) * size : number * size]
    if is_noted:
        shown = (NotedRequest(StoreKey(row["tenant"], row["session"]), one) for row, one in rows)
        rows = await with_sessions(admin, shown)
    values: dict[str, Any] = {"rows": rows, "count": len(found), "page": number, "size": size, "sessions": _LISTED}
    values |= {"show": show, "query": query, "range": within, "currency": services.settings.currency}
    values["given"] = {name: sorted({of(one) for one in listed}) for name, of in overview.FILTERS.items()}
    return _page("requests.html", request, form, tenant=admin.name_of, **values)


def _range(query: Mapping[str, str], default: str) -> str:
    name = query.get("range") or default
    if name and name not in overview.RANGES:
        raise BadRequest(f"'range' must be one of {', '.join(overview.RANGES)}.", param="range")
    return name


async def _overview(request: Request, services: Services, form: str) -> Response:
    now, admin, currency = services.clock(), services.admin, services.settings.currency
    slots = await services.sums.since(max(seconds for seconds, _ in overview.RANGES.values()))
    name = _range(request.query_params, "") or overview.fitting(slots, now)
    shown, ready = overview.in_range(name, slots, now), await readiness(services)
    # Sessions in which something happened are those of the requests that the figures count.
    rings = [ring for ring, amount in NOTED.items() if shown.total[amount]]
    noted = [one for ring in rings for one in await services.sums.noted_in(ring, overview.begin(name, now), _NEWEST)]
    keys = dict.fromkeys(one.key for one in sorted(noted, key=lambda one: -one.record.at) if one.key != NO_SESSION)
    happened = (await admin.listed(list(keys)[: overview.NEWEST]))["data"]
    rows = happened or (await admin.list_newest(overview.NEWEST))["data"]
    return _page(
        "overview.html",
        request,
        form,
        shown=shown,
        ranges=list(overview.RANGES),
        sentence=sentence(shown.total, currency),
        tiles=overview.tiles(shown.total, currency),
        notices=notices(shown.total, ready),
        newest=overview.sessions(rows, "", ""),
        has_happened=bool(happened),
        ready=ready,
    )


async def _session(request: Request, services: Services, key: StoreKey, shown: ShownSession, form: str) -> Response:
    query = request.query_params
    if "export" in query:
        name = f'attachment; filename="{shown.document["session"]}.json"'
        text, headers = json.dumps(shown.document, indent=2), {**_HEADERS, "content-disposition": name}
        return Response(text, headers=headers, media_type="application/json")
    # A side request, such as for a title, opens a branch of its own, which is not what people look for.
    longest = max(shown.branches, key=lambda each: len(shown.branches[each]), default="")
    name = query.get("branch") or longest
    messages = shown.branches.get(name, [])
    number = _number(query.get("message", ""), "message")
    if number is not None:
        if number >= len(messages):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        whole = session.visible(session.whole_text(messages[number]))
        role = messages[number].role.value
        return _page("message.html", request, form, number=number, role=role, text=whole, branch=name)
    if "condensation" in query:
        made = await asyncio.to_thread(session.details_of, query["condensation"], _branch_of(shown, name))
        if made is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _page("condensation.html", request, form, made=made, branch=name, id=query["condensation"])
    cards = await services.memory_admin.list_cards(key) or {"data": []}
    page = _session_page(shown, name, query, services)
    return _page("session.html", request, form, cards=cards["data"][-_MAX_CARDS:], **page)


def _session_page(shown: ShownSession, name: str, query: Mapping[str, str], services: Services) -> dict[str, Any]:
    messages = shown.branches.get(name, [])
    branch = _branch_of(shown, name)
    pins = {pin["message"]: pin["id"] for pin in shown.document["pins"] if pin["branch"] == name}
    asked, newest = _number(query.get("from", ""), "from"), max(len(messages) - session.PAGE, 0)
    start = newest if asked is None else min(asked, len(messages))
    window = next((record.window for record in reversed(branch.requests) if record.window), None)
    server = services.servers.at_hand(LessonScope(""), services.tokenizers.for_model("", ChatCounter), window)
    limits = session.limits(branch, window, services.policies.policy(Controls(window=window), {}, server).budget)
    total, currency = shown.document["totals"], services.settings.currency
    prices = services.policies.prices(shown.session.model) if shown.session.model else None
    # Sessions have no sum of what their calls cost; nobody knows how much of them was answers.
    total = {**total, "own_cost": round(total.get("own_tokens", 0) * prices.input)} if prices else total
    return {
        "session": shown.document,
        "currency": currency,
        "tabs": TABS,
        "tab": query["tab"] if query.get("tab") in TABS else "now",
        "ledger": ledger_of(shown.session, branch.applied),
        "names": sorted(((each, len(found)) for each, found in shown.branches.items()), key=lambda pair: -pair[1]),
        "branch": name,
        "sentence": sentence(total, currency),
        "opening": session.visible(title_of(messages)),
        "window": session.window_of(branch, pins),
        "plot": session.plot(branch, limits),
        "requests": branch.requests[-_MAX_ROWS:][::-1],
        "groups": session.groups(branch, pins, start),
        "start": start,
        "end": min(start + session.PAGE, len(messages)),
        "count": len(messages),
        "page": session.PAGE,
        "condensations": session.condensations_of(shown.document, branch),
        "injected": session.injected(branch, shown.session.patches) if messages else [],
        "verdicts": session.votes_of(shown.document),
        "said": _said(query, window),
        "card_types": TYPES,
    }


def _branch_of(shown: ShownSession, name: str) -> session.Branch:
    stored = next((branch for branch in shown.session.branches if branch.name == name), None)
    return session.branch_of(
        name,
        shown.branches.get(name, []),
        shown.session.condensations,
        stored.applied if stored else "",
        shown.requests,
        shown.counter.message,
    )


def _said(query: Mapping[str, str], window: int | None) -> str:
    """What the last form did, as the address says; "" if the page was opened otherwise."""
    done = query.get("done", "")
    number = _number(query.get("message", query.get("at", "")), "at")
    told = {
        "pin": f"Message {number} is pinned: it stays word for word."
        + (f" All pinned messages together may take {window // PIN_SHARE:,} tokens." if window else ""),
        "unpin": "The message is no longer pinned.",
        "revert": "The condensation is taken back: the longer prompt is sent again where it fits.",
        "restore": "The revert is taken back: the condensation is applied again.",
        "drop": "The line is dropped from the ledger.",
        "forget": "The memory card is deleted.",
        "remember": "The memory card is added.",
        "edit": "The memory card is changed.",
    }
    return told.get(done, "")


def _page(template: str, request: Request, form: str, status: int = HTTPStatus.OK, **values: Any) -> Response:
    # Addresses are relative, so that the pages also work behind a path prefix.
    path = request.scope["path"].removeprefix("/_condenser/")
    here, root = path.removeprefix("pages/").partition("/")[0], "../" * path.count("/") or "./"
    text = _TEMPLATES.get_template(template).render(root=root, here=here, form=form, **values)
    return HTMLResponse(text, status, _HEADERS)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M:%S")


def _minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M")


def _environment() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        moment=_moment, minute=_minute, thousands=lambda number: f"{number:,.0f}", visible=session.visible
    )
    templates.filters["seconds"] = lambda milliseconds: f"{milliseconds / 1000:.2f}" if milliseconds else "-"
    templates.filters["cost"] = lambda cost: f"{cost / MILLION:,.4f}" if cost else "-"
    return templates


_TEMPLATES = _environment()
