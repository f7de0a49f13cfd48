"""Commands that ask a running proxy one thing: `healthcheck`, `status` and `dashboard`."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.commands.proxy_client import URL_HELP, ask, moment, token_for
from proxy.errors import CommandFailed, SettingsError
from proxy.signing import new_code
from proxy.values import json_or_none

_EVERY = 1.0  # seconds between two prints of `status --watch`
_HIDDEN = "only with admin.token"
_CLEAR = "\x1b[H\x1b[2J"  # clears a terminal


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    if command.prog.endswith(" status"):
        command.add_argument("--watch", action="store_true", help="print it every second until interrupted")
    if command.prog.endswith(" dashboard"):
        command.add_argument("--no-open", action="store_true", help="print the address only")


def healthcheck(arguments: argparse.Namespace) -> None:
    answer = ask(arguments.url, "/livez")
    if answer.status != 200:
        raise CommandFailed(answer.problem)


def status(arguments: argparse.Namespace) -> None:
    while True:
        lines = "\n".join(_status_lines(arguments.url))
        print(f"{_CLEAR if arguments.watch and sys.stdout.isatty() else ''}{lines}", flush=True)
        if not arguments.watch:
            return
        time.sleep(_EVERY)


def _status_lines(url: str | None) -> Iterator[str]:
    ready = ask(url, "/readyz", token=_token(url))
    if ready.status != 200:
        raise CommandFailed(ready.problem)
    state = json_or_none(ready.body)
    if not isinstance(state, dict) or "tokenizers" not in state:
        raise CommandFailed(f"{ready.base} is not a condenser")
    yield f"condenser {state['version']}: {state['status']}"
    yield f"  address     {ready.base}"
    yield f"  upstream    {state.get('upstream', _HIDDEN)}"
    yield f"  store       {state['store'].get('url', _HIDDEN)} ({state['store']['state']})"
    yield f"  strategy    {state['strategy']}"
    yield "  tokenizers  " + ", ".join(f"{name} {what}" for name, what in state["tokenizers"].items())
    yield from known_lines(url, ready.base)
    yield from counters(ask(ready.base, "/metrics").body.decode())


def _token(url: str | None) -> str | None:
    try:
        return token_for(url)
    except SettingsError:
        return None  # the settings here need not be those of the proxy


def known_lines(url: str | None, base: str) -> list[str]:
    """What the proxy knows of each model of its upstream, and the source; only the admin token gives access."""
    document = json_or_none(ask(base, "/_condenser/known", token=_token(url)).body)
    if not isinstance(document, dict) or document.get("object") != "known":
        return [f"  known       {_HIDDEN}"]
    return [f"  known       {_known_line(row)}" for row in document["data"]] or ["  known       nothing yet"]


def _known_line(row: Mapping[str, Any]) -> str:
    tenant = f" (tenant {row['tenant']}…)" if row["tenant"] else ""
    window = f"{row['window']:,}" if row["window"] else "unknown"
    more = [f"window {window}" + (f" ({row['source']})" if row["window"] else "")]
    more += [f"until {moment(row['until'])}"] if row["until"] else []
    more += [f"{name} = {str(value).lower()}" for name, value in row["forms"].items()]
    until = row["refuses_tools_until"]
    more += [f"refuses tools until {moment(until)}"] if until else []
    return f"{row['model']}{tenant}: {', '.join(more)}"


def counters(exposition: str) -> Iterator[str]:
    for line in exposition.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("condenser_calibration_error{"):
            yield f"  {name.removeprefix('condenser_')}  {float(value):.1%}"
        elif name.startswith("condenser_") and "_total{" in name and float(value):
            yield f"  {name.removeprefix('condenser_').replace('_total', '')}  {float(value):,.0f}"


def dashboard(arguments: argparse.Namespace) -> None:
    """Prints the address, with a code that signs in once if the token is known here, and opens it."""
    import webbrowser

    page = ask(arguments.url, "/_condenser/")
    if page.status not in {200, 401}:
        closed = f"{page.base} has no dashboard: set admin.token"
        raise CommandFailed(closed if page.status == 404 else page.problem)
    address, token = f"{page.base.rstrip('/')}/_condenser/", _token(arguments.url)
    if token is not None:
        address += f"?code={new_code(token.encode(), time.time(), secrets.token_urlsafe(16))}"
    print(address)
    print("it signs in once" if token is not None else "sign in with admin.token of its settings")
    if not arguments.no_open:
        webbrowser.open(address)
