"""Show the state of a running proxy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.cli import FAILED, OK
from proxy.commands.proxy_client import URL_HELP, ask
from proxy.values import json_or_none


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    command.add_argument("--url", metavar="URL", help=URL_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Prints readiness, and the counters since the start."""
    ready = ask(arguments.url, "/readyz")
    state = json_or_none(ready.body)
    if ready.status != 200 or not isinstance(state, dict) or "tokenizers" not in state:
        print(
            f"condenser: {ready.problem if ready.status != 200 else f'{ready.base} is not a condenser'}",
            file=sys.stderr,
        )
        return FAILED
    print("\n".join(_lines(state, ready.base)))
    print("\n".join(counters(ask(ready.base, "/metrics").body.decode())))
    return OK


def _lines(state: Mapping[str, Any], address: str) -> Iterator[str]:
    yield f"condenser {state['version']}: {state['status']}"
    yield f"  address     {address}"
    yield f"  upstream    {state['upstream']}"
    yield f"  store       {state['store']['url']} ({state['store']['state']})"
    yield f"  strategy    {state['strategy']}"
    yield "  tokenizers  " + ", ".join(f"{name} {what}" for name, what in state["tokenizers"].items())


def counters(exposition: str) -> Iterator[str]:
    """The totals in a Prometheus exposition, a line each."""
    for line in exposition.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("condenser_") and "_total{" in name and float(value):
            yield f"  {name.removeprefix('condenser_').replace('_total', '')}  {float(value):,.0f}"
