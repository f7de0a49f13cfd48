"""Run the proxy."""

from __future__ import annotations

import argparse
import errno
import logging
import socket
import sys

from proxy.app import server_config
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.running import HOST, PORT, client_url, configured_url, listening_url, noted
from proxy.commands.starting import NOT_STARTED, bound_socket, note_of, why_not_started
from proxy.http.server import Server, ServerConfig, Supervisor
from proxy.quoting import redacted
from proxy.settings import Settings
from proxy.version import LOGGER

_log = logging.getLogger(LOGGER)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `serve`."""
    command.add_argument("--host", help=f"the address to listen on ({HOST})")
    command.add_argument("--port", type=int, help=f"the port to listen on ({PORT}); 0 takes any free one")
    command.add_argument("--workers", metavar="N", type=int, help="processes that serve the port (1)")
    add_settings_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal stops it; refuses settings that would lend out a key or split sessions."""
    configured = configured_url()
    settings = settings_from(arguments)
    if code := why_not_started(settings):
        return code
    try:
        listening = bound_socket(settings.host, settings.port)
    except OSError as error:
        print(f"condenser: {_why_not_bound(settings, error)}", file=sys.stderr)
        return NOT_STARTED
    with listening, noted(note_of(settings, configured, listening.getsockname()[1])):
        return _serve(settings, listening)


def _why_not_bound(settings: Settings, error: OSError) -> str:
    place = f"port {settings.port} of {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program; choose another port with --port, or any free one with --port 0"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{settings.host} is no address of this machine; --host names the one to listen on"
    return f"{place} cannot be listened on: {(error.strerror or '').lower()}"


def _serve(settings: Settings, listening: socket.socket) -> int:
    """Serves with one process, or with several that accept from one socket.

    A worker that dies is replaced, unless it could not start.
    """
    config = server_config(settings)
    announced = banner(settings, listening.getsockname()[1])
    if settings.workers == 1:
        server = _Server(config, announced)
        server.run([listening])
        return 0 if server.started else NOT_STARTED
    print(announced, flush=True)
    watch = Supervisor(config, [listening])
    watch.run()
    return NOT_STARTED if any(worker.exitcode == NOT_STARTED for worker in watch.processes) else 0


class _Server(Server):
    """A server that prints the banner once it accepts connections."""

    def __init__(self, config: ServerConfig, announced: str) -> None:
        super().__init__(config)
        self._announced = announced

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._announced, flush=True)


def banner(settings: Settings, port: int) -> str:
    """What a person wants to see first: where the proxy listens, what it uses, and what a client must be given."""
    return (
        f"condenser listens on {listening_url(settings.host, port)}/v1\n"
        f"  upstream   {redacted(settings.upstream.base_url)}\n"
        f"  store      {redacted(settings.store.url)}\n"
        f"  strategy   {settings.strategy}\n"
        f'  client     OpenAI(base_url="{client_url(settings.host, port)}/v1")'
    )
