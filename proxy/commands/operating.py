"""What the commands of an operator have in common: the proxy that they ask, its token, and finding a session."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from proxy.cli import FAILED, OK
from proxy.commands.running import Reply, ask
from proxy.request.loose_json import json_or_none
from proxy.sessions.admin import known_token
from proxy.settings import load_settings

TIMEOUT = 60.0  # seconds; a listing reads every session

HINT_401 = "the token is wrong: give --token, or set admin.token to that of the proxy"
HINT_404 = "there is no such session, or the proxy has no token: set admin.token"


class Failed(Exception):
    """What to tell a person instead of an answer."""


def add_proxy_arguments(action: argparse.ArgumentParser) -> None:
    """The options that say which proxy is asked, and of whose sessions."""
    action.add_argument("--tenant", help="sessions of this tenant only")
    action.add_argument("--url", help="where the proxy is; by default the settings' host and port")
    action.add_argument("--token", help="by default admin.token, or the file beside the store of the settings")


def done(action: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """The exit code of an action, which may raise `Failed`; 1 with a line on standard error where it has no answer."""
    if arguments.token is None:
        arguments.token = known_token(load_settings(), arguments.url)
    try:
        action(arguments)
    except (Failed, OSError) as error:
        print(f"condenser: {error}", file=sys.stderr)
        return FAILED
    return OK


def key_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """Tenant and key of the session that is meant; an id can be that of several tenants. Raises `Failed`."""
    rows = listed(arguments, id=arguments.id)
    found = [(row["tenant"], row["session"]) for row in (*rows["data"], *rows["unreadable"])]
    if not found:
        raise Failed(f"there is no session {arguments.id}")
    if len(found) > 1:
        keys = "".join(f"\n  {session} --tenant {tenant}" for tenant, session in found)
        raise Failed(f"{arguments.id} is the id of several sessions; name one of{keys}")
    return found[0]


def listed(arguments: argparse.Namespace, **query: str) -> dict[str, Any]:
    """The listing of sessions, narrowed by `query`; raises `Failed`."""
    if arguments.tenant is not None:
        query["tenant"] = arguments.tenant
    rows: dict[str, Any] = asked(arguments, path_of(**query))
    return rows


def path_of(*names: str, **query: str) -> str:
    """The path of a session, or of what is under it."""
    path = "/".join(("/_condenser/sessions", *(quote(name, safe="") for name in names)))
    return f"{path}?{urlencode(query)}" if query else path


def asked(
    arguments: argparse.Namespace, path: str, method: str = "GET", given: object = None, hint_404: str = HINT_404
) -> Any:
    """The document at a path, an object or an array, asked with a JSON body where one is `given`; raises `Failed`."""
    body = None if given is None else json.dumps(given).encode()
    reply = ask(arguments.url, path, method=method, token=arguments.token, timeout=TIMEOUT, body=body)
    if reply.status != 200:
        raise Failed(_problem(reply, {400: _message(reply), 401: HINT_401, 404: hint_404}))
    document = json_or_none(reply.body)
    if not isinstance(document, dict | list):
        raise Failed("what answers there is no condenser")
    return document


def _problem(reply: Reply, hints: dict[int, str]) -> str:
    hint = hints.get(reply.status)
    return f"{reply.problem}; {hint}" if hint else reply.problem


def _message(reply: Reply) -> str:
    """The message of an error in OpenAI's form, as far as it is one."""
    try:
        return str(json.loads(reply.body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as aligned lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def printable(text: str) -> str:
    """A text without control characters, in one line."""
    return "".join(char if char.isprintable() else " " for char in text)
