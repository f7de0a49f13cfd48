"""Show what the proxy does with a long conversation; needs no key and no model.

One recorded conversation is driven three ways at once: direct to the model server, through the proxy with its oldest
rounds dropped, and through the proxy with the strategy of your choice.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from importlib.util import find_spec

from proxy.cli import FAILED, OK, USAGE
from proxy.commands.values import address, positive, strategy, window
from strategies import DEFAULT

WINDOW = 8_192
NO_CLIENT = (
    "condenser: the demo drives the official openai client, which is not installed here.\n"
    "  In a checkout `make demo` installs it; elsewhere: pip install 'openai>=2.0'"
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `demo`."""
    command.add_argument(
        "--strategy", metavar="NAME", type=strategy, default=DEFAULT, help=f"the third way ({DEFAULT})"
    )
    command.add_argument("--window", metavar="TOKENS", type=window, default=WINDOW, help=f"the window ({WINDOW:,})")
    command.add_argument("--requests", metavar="N", type=positive, help="drive the first N requests only")
    command.add_argument(
        "--upstream", metavar="URL", type=address, help="a real model server, with its /v1 (key: OPENAI_API_KEY)"
    )
    command.add_argument("--model", metavar="NAME", help="the model to ask there")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; exits 1 when something did not go as it must."""
    if bool(arguments.upstream) != bool(arguments.model):
        print("condenser: --upstream and --model go together", file=sys.stderr)
        return USAGE
    if find_spec("openai") is None:
        print(NO_CLIENT, file=sys.stderr)
        return FAILED
    return OK if _demo(arguments) else FAILED


def _demo(arguments: argparse.Namespace) -> bool:
    from proxy.demo.conversation import load
    from proxy.demo.run import demo
    from proxy.demo.ways import Options

    options = Options(arguments.strategy, arguments.window, arguments.requests)
    if arguments.upstream:
        key = os.environ.get("OPENAI_API_KEY", "none")
        options = options._replace(upstream=arguments.upstream, model=arguments.model, api_key=key)
    return demo(options, load(), partial(print, flush=True))
