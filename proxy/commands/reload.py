"""Make the proxy that runs here load keys, models, prices and log level again."""

from __future__ import annotations

import argparse
import os
import signal
import time

from proxy.commands.proxy_client import default_url
from proxy.commands.running import hangup_answer, process_of
from proxy.errors import CommandFailed

_BOUND, _TICK = 10.0, 0.05  # seconds for the answer, and between two looks for it


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", metavar="URL", help="which proxy, if several run here")


def run(arguments: argparse.Namespace) -> None:
    """Prints what came of it; raises `CommandFailed` where the settings have an error, or no proxy answers."""
    url = (arguments.url or default_url()).rstrip("/")
    process = process_of(url)
    if process is None:
        raise CommandFailed(f"you run no proxy at {url} on this machine; elsewhere, send it SIGHUP")
    before, until = hangup_answer(process), time.monotonic() + _BOUND
    try:
        os.kill(process, signal.SIGHUP)
        while (answer := hangup_answer(process)) == before:
            if time.monotonic() > until:
                raise CommandFailed(f"{url} did not answer in {_BOUND:g} s; that of `condenser wrap` cannot reload")
            time.sleep(_TICK)
    except OSError as error:
        raise CommandFailed(f"SIGHUP cannot be sent to {url}: {(error.strerror or str(error)).lower()}") from None
    if answer is None or not answer.is_right:
        raise CommandFailed(answer.text if answer else f"{url} has ended")
    print(answer.text)
