"""Print the address of a running proxy's dashboard, and open it."""

from __future__ import annotations

import argparse
import webbrowser

from proxy.commands.proxy_client import URL_HELP, ask
from proxy.commands.running import find_proxy
from proxy.errors import CommandFailed


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `dashboard`."""
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    command.add_argument("--no-open", action="store_true", help="print the address only")


def run(arguments: argparse.Namespace) -> None:
    """Prints the address, and where the token is that one signs in with; the token itself never is in an address."""
    page = ask(arguments.url, "/_condenser/")
    if page.status not in {200, 401}:
        closed = f"{page.base} has no dashboard: set admin.token"
        raise CommandFailed(closed if page.status == 404 else page.problem)
    address = f"{page.base.rstrip('/')}/_condenser/"
    print(address)
    running = find_proxy() if arguments.url is None else None
    file = running.token_file if running else None
    print(f"sign in with {f'the token in {file}' if file else 'admin.token of its settings'}")
    if not arguments.no_open:
        webbrowser.open(address)
