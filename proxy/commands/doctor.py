"""Say whether requests of a client arrive at a running proxy, and why nothing was condensed, each with what to do.

It says what the proxy has counted. The exit status is 1 if there is something to mend: no proxy, no request, failed
requests, or a store that does not work.
"""

from __future__ import annotations

import argparse

from proxy.commands.checks import findings, report
from proxy.commands.proxy_client import HOURS, TOKEN_HELP, URL_HELP, proxy_at


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help=URL_HELP)
    command.add_argument("--token", help=TOKEN_HELP)
    command.add_argument("--hours", metavar="N", type=int, default=HOURS, help=f"how far to look back ({HOURS})")
    command.add_argument("--json", action="store_true", help="the findings as data")


def run(arguments: argparse.Namespace) -> int:
    proxy = proxy_at(arguments.url, arguments.token, arguments.hours)
    return report("doctor", findings("doctor", proxy), is_json=arguments.json)
