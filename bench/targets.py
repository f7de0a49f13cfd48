"""What is measured under load: no proxy, a naive one, this one over each store, and peers; all up at once."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.processes import Served, condenser, naive, stub
from tests.support.redis_server import RedisServer
from tests.support.redis_server import available as redis_available

DIRECT, NAIVE = "direct", "naive"
STORES = ("memory", "sqlite", "redis")
AWECOMPRESS = "awecompress"
_AWECOMPRESS = "awecompress serve --host 127.0.0.1 --port {port} --upstream {stub}"
PEERS = {AWECOMPRESS: f"env AWECOMPRESS_CONFIG_DIR={{folder}} {_AWECOMPRESS}"}
"""What is measured too where it is installed, and how it is started."""


@contextmanager
def targets(stores: Sequence[str], peers: Sequence[str]) -> Iterator[dict[str, Served]]:
    """Everything that is measured, by its name; `peers` are more of them, each `NAME=COMMAND`."""
    with ExitStack() as stack:
        upstream = stack.enter_context(stub())
        found = {DIRECT: upstream, NAIVE: stack.enter_context(naive(upstream.port))}
        for name in stores:
            if (url := store_url(name, stack)) is not None:
                found[name] = stack.enter_context(condenser(upstream.port, url))
        for name, command in _peers(peers):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            filled = command.replace("{stub}", f"http://127.0.0.1:{upstream.port}").replace("{folder}", folder)
            found[name] = stack.enter_context(Served(shlex.split(filled)))
        yield found


def store_url(name: str, stack: ExitStack) -> str | None:
    """The address of an empty store that lasts as long as the stack; None where it cannot be had."""
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{Path(stack.enter_context(tempfile.TemporaryDirectory())) / 'sessions.db'}"
    return stack.enter_context(RedisServer()).url if redis_available() else None


def _peers(more: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names and commands of the peers that are installed, and of those that were asked for."""
    for name, command in PEERS.items():
        if shutil.which(name):
            yield name, command
    for each in more:
        name, _, command = each.partition("=")
        yield name, command
