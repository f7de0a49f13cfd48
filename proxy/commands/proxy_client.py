"""Requests to a running proxy, and helpers for the commands that use its admin API.

Only the standard library is imported at the top, because a health check must start quickly; the settings are imported
where they are needed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from difflib import get_close_matches
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from proxy.cli import USAGE
from proxy.commands.running import Note, admin_url, configured_url, find_proxy, living, note_at
from proxy.errors import CommandFailed, SettingsError
from proxy.quoting import redacted
from proxy.values import json_or_none

TIMEOUT = 5.0
_ADMIN_TIMEOUT = 60.0  # seconds; a listing reads every session
URL_HELP = "where the proxy is; by default the one that runs here, else the settings' host and port"
TOKEN_HELP = "by default admin.token of the settings, or that of the proxy here"  # noqa: S105
HOURS = 24  # of the sums, unless a command is told otherwise
SHORT = 12  # characters of a session's key that `sessions list` prints, and that name the session if no other has them
NOT_STORED = "A short conversation whose client sends no id is kept once it fills a quarter of its window"
HINT_404 = "there is no such session"
HINT_TENANT = "there is no such tenant, or its admin API is off"
_HINT_401 = "it needs its admin token: give --token, or set admin.token here to that of the proxy"
_HINT_CLOSED = "its admin API is off: start it with admin.token set, and give that token with --token here"
_DERIVED = re.compile("p[0-9a-f]{16}")  # the id of a conversation that is not stored yet
_HEADERS = {"Content-Type": "application/json"}
NO_HEADERS: Mapping[str, str] = {}
_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


class Reply(NamedTuple):
    """A proxy's answer; status 0 and a `problem` if there is none."""

    status: int
    body: bytes = b""
    problem: str = ""
    base: str = ""


def ask(
    url: str | None,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    timeout: float = TIMEOUT,
    body: bytes | None = None,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Reply:
    """The answer of the proxy at `url`, by default the one that runs on this machine.

    `timeout` is in seconds. A `body` is JSON.
    """
    base = (url if url is not None else default_url()).rstrip("/")
    if path.startswith("/_condenser/") and not path.startswith("/_condenser/own/"):
        base = admin_url(base)
    own = {**(_HEADERS if body else {}), **({"Authorization": f"Bearer {token}"} if token is not None else {})}
    why = f"an address has {'no user and no password here' if '@' in base else 'the form http://HOST:PORT'}"
    try:
        if parts := _parsed(base):
            connection = _CONNECTIONS[parts.scheme](parts.netloc, timeout=timeout)
            with closing(connection):
                connection.request(method, parts.path + path, body, {**own, **headers})
                answer = connection.getresponse()
                return Reply(answer.status, answer.read(), f"{base} answered {answer.status}", base)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    except HTTPException:
        why = "what answers there is not a condenser"
    hint = "" if url is not None else "; --url names another address"
    return Reply(0, problem=f"no proxy answers at {redacted(base) if '@' in base else base}: {why}{hint}")


class RunningProxy(NamedTuple):
    """What a proxy says of itself: `/readyz`, and what the admin token opens, None without it."""

    base: str
    problem: str = ""  # why `ready` is empty: no proxy answers
    ready: Mapping[str, Any] = MappingProxyType({})
    token: str | None = None  # the one that it was asked with
    hours: int = HOURS
    status: int = 0  # of the answer with `sums`
    sums: Mapping[str, Any] | None = None  # of the last hours
    arrivals: Mapping[str, Any] | None = None
    known: Mapping[str, Any] | None = None
    others: Sequence[str] = ()  # the addresses of other proxies of this user

    @property
    def total(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for row in (self.sums or {}).get("data", ()):
            total.update({name: amount for name, amount in row.items() if name != "at"})
        return total


def proxy_at(url: str | None, token: str | None = None, hours: int = HOURS) -> RunningProxy:
    """What the proxy at `url` says of itself, by default the one that runs here."""
    try:
        token = token_for(url) if token is None else token
    except SettingsError:
        token = None  # the settings here need not be those of the proxy
    reply = ask(url, "/readyz", token=token)
    others = [note.url for note in living() if note.url != reply.base]
    ready = json_or_none(reply.body)
    if not isinstance(ready, dict) or "store" not in ready:
        problem = reply.problem if reply.status != 200 else f"{reply.base} is not a condenser"
        return RunningProxy(reply.base, problem, others=others)
    (status, sums), (_, arrivals), (_, known) = (
        _opened(reply.base, name, token, query)
        for name, query in (("sums", f"?hours={hours}"), ("arrivals", ""), ("known", ""))
    )
    return RunningProxy(reply.base, "", ready, token, hours, status, sums, arrivals, known, others)


def _opened(base: str, name: str, token: str | None, query: str) -> tuple[int, Mapping[str, Any] | None]:
    """The status and the document of this name in the admin API; None if the answer is another one, or a refusal."""
    reply = ask(base, f"/_condenser/{name}{query}", token=token)
    document = json_or_none(reply.body)
    return reply.status, document if isinstance(document, dict) and document.get("object") == name else None


def default_url() -> str:
    """The address of a proxy that runs on this machine, else the one that the settings name.

    Raises `SettingsError` if that is a proxy of other settings, which nobody has named.
    """
    running = _running()
    url = running.url if running else configured_url()
    if running is None and note_at(url) is not None:
        raise SettingsError(f"the proxy at {url} is of other settings, or of another home; --url {url} names it")
    return url


def _running() -> Note | None:
    """The proxy that a command means without --url; says on standard error which one, if several run here."""
    found = find_proxy()
    if found and (count := len(list(living()))) > 1:
        _say_once(f"proxy {found.url} (one of {count} running here; --url picks another)")
    return found


@cache
def _say_once(line: str) -> None:
    """Says a line on standard error, once in the process: a command asks several times for its proxy."""
    print(line, file=sys.stderr, flush=True)


def _parsed(base: str) -> SplitResult | None:
    """The parts of an address, which has no user and no password here; None for any other text."""
    try:
        parts = urlsplit(base)
        is_address = parts.scheme in _CONNECTIONS and bool(parts.hostname) and parts.port != 0 and "@" not in base
    except ValueError:
        is_address = False
    return parts if is_address else None


def actions_of(command: argparse.ArgumentParser) -> Any:
    return command.add_subparsers(title="actions", required=True, metavar="ACTION")


def add_action(
    actions: Any, name: str, run: Callable[[argparse.Namespace], None], text: str, session: str = ""
) -> argparse.ArgumentParser:
    """Adds an action that asks a proxy, and returns its parser; `text` is its line of help.

    With `session` it takes the id of a session; this is the help for it.
    """
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
    action.set_defaults(run=run, parser=action)
    if session:
        action.add_argument("id", metavar="ID", help=session)
    add_proxy_arguments(action)
    return action


def add_yes(action: argparse.ArgumentParser) -> None:
    action.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def add_proxy_arguments(action: argparse.ArgumentParser) -> None:
    action.add_argument("--tenant", help="look only at the sessions of this tenant: its name or its digest")
    action.add_argument("--url", metavar="URL", help=URL_HELP)
    action.add_argument("--token", help=TOKEN_HELP)
    action.add_argument(
        "--store", metavar="URL", help="read this store itself; by default that of the settings is, if no proxy runs"
    )
    action.add_argument("--config", metavar="FILE", help="the settings file")


def token_for(url: str | None) -> str | None:
    """The token of the settings, else that in the file of the asked proxy, if it runs on this machine."""
    from proxy.settings import load_settings
    from proxy.settings.token import known_token, read_token

    running, settings = _running() if url is None else note_at(url), load_settings()
    if settings.admin.token is None and running and running.token:
        return running.token
    if settings.admin.token is None and running and running.token_file:
        return read_token(Path(running.token_file))
    return known_token(settings, url)


def settle(arguments: argparse.Namespace) -> bool:
    """Settles for all requests of a command to which proxy they go; returns whether that was a choice among several."""
    running = _running() if arguments.url is None else None
    if running is None:
        return False
    if arguments.token is None:
        arguments.token = token_for(running.url)
    arguments.url = running.url
    return len(list(living())) > 1


def confirm(arguments: argparse.Namespace, what: str) -> None:
    """Asks whether to do what cannot be undone; raises `CommandFailed` for a no, and where nobody can be asked."""
    if arguments.yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise CommandFailed(f"to {what}, give --yes: standard input is not a terminal", USAGE)
    print(f"{what[:1].upper()}{what[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandFailed("nothing was deleted")


def list_sessions(arguments: argparse.Namespace, **query: str) -> dict[str, Any]:
    """The listing of sessions, narrowed by `query`; raises `CommandFailed`."""
    if arguments.tenant is not None:
        query["tenant"] = arguments.tenant
    # Every proxy with an admin API has a list, even if it is empty.
    rows: dict[str, Any] = request_json(arguments, session_path(**query), hint_404=_HINT_CLOSED)
    return rows


def request_session(
    arguments: argparse.Namespace,
    *names: str,
    method: str = "GET",
    payload: object = None,
    hint_404: str = HINT_404,
    **query: str,
) -> Any:
    """The answer about the session with the id in `arguments`, or at the path `names` below it; see `request_json`."""
    path = session_path(*session_of(arguments), *names, **query)
    return request_json(arguments, path, method, payload, hint_404)


def session_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Tenant and key of the session with the id in `arguments`.

    Raises `CommandFailed` if there is no such session, or if several tenants have one with that id.
    """
    rows = list_sessions(arguments, id=arguments.id)
    sessions = [(row["tenant"], row["session"]) for row in (*rows["data"], *rows["unreadable"])]
    if not sessions:
        rows = list_sessions(arguments)
        known = [(row["tenant"], row["session"]) for row in (*rows["data"], *rows["unreadable"])]
        # Only a key is cut, not an id of a client's: one such id may well begin another.
        sessions = [key for key in known if len(arguments.id) >= SHORT and key[1].startswith(arguments.id)]
    if not sessions:
        raise CommandFailed(f"there is no session {arguments.id}{_nearest(arguments.id, rows)}")
    if len(sessions) > 1:
        keys = "".join(f"\n  {session} --tenant {tenant}" for tenant, session in sessions)
        raise CommandFailed(f"{arguments.id} is the id of several sessions; name one of{keys}")
    return sessions[0]


def _nearest(name: str, rows: Mapping[str, Any]) -> str:
    ids = {row[column] for row in rows["data"] for column in ("session", "id")}
    near = get_close_matches(name, ids)
    if _DERIVED.fullmatch(name):
        return f": {NOT_STORED[0].lower()}{NOT_STORED[1:]}"
    return f"; did you mean {' or '.join(near)}?" if near else "; `condenser sessions list` prints them"


def session_path(*names: str, **query: str) -> str:
    """The path of a session in the admin API, or a path below it."""
    path = "/".join(("/_condenser/sessions", *(quote(name, safe="") for name in names)))
    return f"{path}?{urlencode(query)}" if query else path


def request_json(
    arguments: argparse.Namespace, path: str, method: str = "GET", payload: object = None, hint_404: str = HINT_404
) -> Any:
    """The JSON document that the proxy answers with at a path: an object, or the array of an export.

    `payload` is sent as a JSON body. Raises `CommandFailed` for any other answer; `hint_404` explains a 404.
    """
    if arguments.store is not None:
        reply = _stored(arguments, path, Reply(0, problem="--store can only be read; a proxy changes it"), method)
    else:
        if arguments.token is None:
            arguments.token = token_for(arguments.url)
        body = None if payload is None else json.dumps(payload).encode()
        reply = ask(arguments.url, path, method=method, token=arguments.token, timeout=_ADMIN_TIMEOUT, body=body)
        if reply.status == 0 and arguments.url is None:
            reply = _stored(arguments, path, reply, method)
    document = json_or_none(reply.body)
    if reply.status != 200:
        said = message_of(document)
        hint = {400: said, 401: _HINT_401, 404: said if "admin.listen" in said else hint_404}.get(reply.status)
        raise CommandFailed(f"{reply.problem}; {hint}" if hint else reply.problem)
    # An answer that is read names its kind; an added card comes back as it is stored.
    is_ours = isinstance(document, dict) and ("object" in document or method != "GET")
    if not is_ours and not (isinstance(document, list) and path.endswith("/memory/export")):
        raise CommandFailed("the server at that address is not a condenser")
    return document


def _stored(arguments: argparse.Namespace, path: str, reply: Reply, method: str) -> Reply:
    """What a proxy with these settings would answer of its store; `reply` where it is not read, or there is none."""
    import asyncio

    from proxy.commands.options import settings_from
    from proxy.errors import ProxyError
    from proxy.operator.routes import read
    from proxy.services import open_services
    from proxy.store import file_of
    from proxy.store.base import StoreError

    settings = settings_from(arguments)
    file, place = file_of(settings.store.url), redacted(settings.store.url)
    if settings.store.url == "memory://" or (file is not None and not file.exists()):
        return reply if arguments.store is None else Reply(0, problem=f"there is no store at {place}")
    if method != "GET":
        return reply

    async def reading() -> Any:
        parts = urlsplit(path)
        async with open_services(settings) as services:
            return await read(services, parts.path, parts.query)

    _say_once(f"no proxy is asked: read from {place}")
    try:
        document = asyncio.run(reading())
    except StoreError as error:
        raise CommandFailed(f"{place} cannot be read: {error}") from None
    except ProxyError as error:
        raise CommandFailed(error.message) from None
    return Reply(404 if document is None else 200, json.dumps(document).encode(), place)


def message_of(document: Any) -> str:
    """The message of an error in OpenAI's form; "" for any other document."""
    try:
        return str(document["error"]["message"])
    except (LookupError, TypeError):
        return ""


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))
