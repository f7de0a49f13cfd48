"""What `sessions` and `memory` share: options that name a proxy, its admin API, finding a session, printing tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from proxy.chat.values import json_or_none
from proxy.cli import FAILED, OK
from proxy.commands.proxy_client import URL_HELP, Reply, ask
from proxy.commands.running import find_proxy
from proxy.quoting import in_words
from proxy.settings import load_settings
from proxy.settings.token import known_token, read_token

TIMEOUT = 60.0  # seconds; a listing reads every session

HINT_401 = "the token is wrong: give --token, or set admin.token to that of the proxy"
HINT_404 = "there is no such session"
HINT_CLOSED = "its admin API is off: start it with admin.token set, and give that token with --token here"
HINT_TENANT = "there is no such tenant, or its admin API is off"


class CommandFailed(Exception):
    """A command cannot do its work; the message is for the user."""


def add_proxy_arguments(action: argparse.ArgumentParser) -> None:
    """Adds the options that name the proxy, its token and a tenant."""
    action.set_defaults(parser=action)
    action.add_argument("--tenant", help="look only at the sessions of this tenant, named by its digest")
    action.add_argument("--url", metavar="URL", help=URL_HELP)
    action.add_argument("--token", help="by default admin.token of the settings, or that of the proxy here")


def sentence(help_text: str) -> str:
    """The line of a list of actions, as the description of one of them."""
    return help_text[:1].upper() + help_text[1:] + "."


def run_action(action: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> int:
    """Runs an action and returns the exit code: 1, and a line on standard error, where it raises `CommandFailed`."""
    if arguments.token is None:
        arguments.token = _token(arguments.url)
    try:
        action(arguments)
    except (CommandFailed, OSError) as error:
        print(f"condenser: {in_words(error)}", file=sys.stderr)
        return FAILED
    return OK


def _token(url: str | None) -> str | None:
    """The token of the settings, else the one in the file of the proxy that is asked, if that runs on this machine."""
    settings, running = load_settings(), find_proxy() if url is None else None
    if settings.admin.token is None and running and running.token_file:
        return read_token(Path(running.token_file))
    return known_token(settings, url)


def find_key(arguments: argparse.Namespace) -> tuple[str, str]:
    """Tenant and key of the session with the id in `arguments`.

    Raises `CommandFailed` where there is none, or where several tenants have a session with that id.
    """
    rows = list_sessions(arguments, id=arguments.id)
    found = [(row["tenant"], row["session"]) for row in (*rows["data"], *rows["unreadable"])]
    if not found:
        raise CommandFailed(f"there is no session {arguments.id}")
    if len(found) > 1:
        keys = "".join(f"\n  {session} --tenant {tenant}" for tenant, session in found)
        raise CommandFailed(f"{arguments.id} is the id of several sessions; name one of{keys}")
    return found[0]


def list_sessions(arguments: argparse.Namespace, **query: str) -> dict[str, Any]:
    """The listing of sessions, narrowed by `query`; raises `CommandFailed`."""
    if arguments.tenant is not None:
        query["tenant"] = arguments.tenant
    # Every proxy with an admin API has a list, if an empty one.
    rows: dict[str, Any] = request_json(arguments, session_path(**query), hint_404=HINT_CLOSED)
    return rows


def session_path(*names: str, **query: str) -> str:
    """The admin API's path of a session, or of something below it."""
    path = "/".join(("/_condenser/sessions", *(quote(name, safe="") for name in names)))
    return f"{path}?{urlencode(query)}" if query else path


def request_json(
    arguments: argparse.Namespace, path: str, method: str = "GET", payload: object = None, hint_404: str = HINT_404
) -> Any:
    """The JSON document that the proxy answers with at a path: an object or an array.

    `payload` is sent as a JSON body. Raises `CommandFailed` for any other answer; `hint_404` explains a 404.
    """
    body = None if payload is None else json.dumps(payload).encode()
    reply = ask(arguments.url, path, method=method, token=arguments.token, timeout=TIMEOUT, body=body)
    if reply.status != 200:
        raise CommandFailed(_problem(reply, {400: _message(reply), 401: HINT_401, 404: hint_404}))
    document = json_or_none(reply.body)
    if not isinstance(document, dict | list):
        raise CommandFailed("the server at that address is not a condenser")
    return document


def _problem(reply: Reply, hints: dict[int, str]) -> str:
    hint = hints.get(reply.status)
    return f"{reply.problem}; {hint}" if hint else reply.problem


def _message(reply: Reply) -> str:
    """The message of an error in OpenAI's form; "" for any other body."""
    try:
        return str(json.loads(reply.body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def printable(text: str) -> str:
    """A text in one line, with a space for each control character."""
    return "".join(char if char.isprintable() else " " for char in text)
