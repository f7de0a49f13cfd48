"""Ask a running proxy whether it is alive; exits 0 if so."""

from __future__ import annotations

import argparse

from proxy.commands.proxy_client import URL_HELP, ask
from proxy.errors import CommandFailed


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `healthcheck`."""
    command.add_argument("--url", metavar="URL", help=URL_HELP)


def run(arguments: argparse.Namespace) -> None:
    """Prints nothing when all is well."""
    answer = ask(arguments.url, "/livez")
    if answer.status != 200:
        raise CommandFailed(answer.problem)
