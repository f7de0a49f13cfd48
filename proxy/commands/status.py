"""Show the state of a running proxy."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from proxy.commands.proxy_client import URL_HELP, ask
from proxy.errors import CommandFailed
from proxy.values import json_or_none


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    command.add_argument("--url", metavar="URL", help=URL_HELP)


def run(arguments: argparse.Namespace) -> None:
    """Prints readiness, and the counters since the start."""
    ready = ask(arguments.url, "/readyz")
    if ready.status != 200:
        raise CommandFailed(ready.problem)
    state = json_or_none(ready.body)
    if not isinstance(state, dict) or "tokenizers" not in state:
        raise CommandFailed(f"{ready.base} is not a condenser")
    print(f"condenser {state['version']}: {state['status']}")
    print(f"  address     {ready.base}")
    print(f"  upstream    {state['upstream']}")
    print(f"  store       {state['store']['url']} ({state['store']['state']})")
    print(f"  strategy    {state['strategy']}")
    print("  tokenizers  " + ", ".join(f"{name} {what}" for name, what in state["tokenizers"].items()))
    print("\n".join(counters(ask(ready.base, "/metrics").body.decode())))


def counters(exposition: str) -> Iterator[str]:
    """The totals in a Prometheus exposition, a line each."""
    for line in exposition.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("condenser_") and "_total{" in name and float(value):
            yield f"  {name.removeprefix('condenser_').replace('_total', '')}  {float(value):,.0f}"
