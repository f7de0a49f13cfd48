"""Show what the proxy does with a long conversation; needs no key and no model.

One recorded conversation is replayed three ways at once: as the client sends it, with its oldest rounds dropped, and
with the strategy of your choice.
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial

from proxy.cli import FAILED, OK
from proxy.commands.options import positive, strategy, window
from strategies import DEFAULT

WINDOW = 8_192
PROTOCOLS = ("chat", "messages", "responses")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--strategy", metavar="NAME", type=strategy, default=DEFAULT, help=f"the third way ({DEFAULT})"
    )
    command.add_argument("--window", metavar="TOKENS", type=window, default=WINDOW, help=f"the window ({WINDOW:,})")
    command.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0], help=f"the API ({PROTOCOLS[0]})")
    command.add_argument("--requests", metavar="N", type=positive, help="replay the first N requests only")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; returns 1 if a check in it fails."""
    from proxy.demo import demo, first, load

    conversation = first(load(arguments.protocol), arguments.requests)
    went_well = asyncio.run(demo(conversation, arguments.strategy, arguments.window, partial(print, flush=True)))
    return OK if went_well else FAILED
