"""Run the proxy."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import errno
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from proxy.app import create_app
from proxy.cli import OK, USAGE
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.running import HOST, PORT, Note, client_url, configured_url, listening_url, noted
from proxy.http.connection import Connection, ConnectionBounds
from proxy.http.server import Server, ServerConfig, Supervisor
from proxy.log import configure_logging
from proxy.quoting import in_words, redacted
from proxy.request.callers import tenant_key
from proxy.runtime.drain import Drain
from proxy.settings import Settings
from proxy.settings.tables import ModelRole, UpstreamSettings
from proxy.settings.token import admin_token, is_loopback, token_file
from proxy.store import open_store
from proxy.store.base import Store, StoreError
from proxy.version import LOGGER

REFUSAL = """condenser: refusing to start on {host} with {keys}:
anyone who reaches the port could use your key. Ways out, one of them:
  - listen on this machine only: --host 127.0.0.1
  - leave the key out, so that only the credentials of the callers are used
  - put a proxy that authenticates in front, and name tenants by it: tenant.from = "header:NAME"
  - say that it is meant: open_to_all = true, or CONDENSER_OPEN_TO_ALL=true; so a container listens whose port is
    published on this machine only (-p 127.0.0.1:8484:8484)"""
STORE_NOT_SHARED = """condenser: refusing to start several workers with memory://, which is the memory of one of them:
a conversation's next request would mostly reach another. Give them a store to share: a SQLite file or Redis."""
NOT_STARTED = 3
_log = logging.getLogger(LOGGER)
KEEP_ALIVE = 75  # seconds for an idle connection of a client


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


def why_not_started(settings: Settings) -> int:
    """Checks settings and store, and sets up the log; the exit code, with its cause printed, or 0 if all is well."""
    if gives_the_key_away(settings):
        print(REFUSAL.format(host=settings.host, keys=" and ".join(keys_of(settings))), file=sys.stderr)
        return USAGE
    if settings.workers > 1 and settings.store.url == "memory://":
        print(STORE_NOT_SHARED, file=sys.stderr)
        return USAGE
    configure_logging(settings.log)
    use_one_heap()
    if problem := asyncio.run(store_problem(settings)):
        print(f"condenser: {problem}", file=sys.stderr)
        return NOT_STARTED
    for warning in warnings(settings):
        _log.warning(warning)
    return OK


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at an address, of IPv4 where the host has both kinds; raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.set_inheritable(True)
    except OSError:
        bound.close()
        raise
    return bound


def _why_not_bound(settings: Settings, error: OSError) -> str:
    place = f"port {settings.port} of {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{place} is taken by another program; choose another port with --port, or any free one with --port 0"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{settings.host} is no address of this machine; --host names the one to listen on"
    return f"{place} cannot be listened on: {(error.strerror or '').lower()}"


def note_of(settings: Settings, configured: str, port: int) -> Note:
    """What other commands on this machine need to find this proxy."""
    token = token_file(settings)
    return Note(client_url(settings.host, port), configured, os.path.abspath(token) if token else None, time.time())


async def store_problem(settings: Settings) -> str:
    """Why the store, or a secret file next to it, cannot be opened; "" if all of them can be.

    This is checked before the port is taken, because an error within the server would print a traceback.
    """
    try:
        store = await open_store(settings.store.url)
        try:
            await _warn_of_silence(store, settings)
        finally:
            await store.close()
        tenant_key(settings)
        admin_token(settings)
    except (StoreError, OSError, ValueError) as error:
        return f"store.url is {redacted(settings.store.url)}, which cannot be opened: {in_words(error)}"
    return ""


async def _warn_of_silence(store: Store, settings: Settings) -> None:
    """Warns if the store does not answer: a server may be down when the proxy starts, or its address be wrong."""
    try:
        async with asyncio.timeout(settings.store.timeout):
            await store.ping()
    except (StoreError, TimeoutError) as error:
        why = str(error) or f"{redacted(settings.store.url)} gave no answer in time"
        _log.warning("the store cannot be reached, and requests are served without it until it answers: %s", why)


def warnings(settings: Settings) -> list[str]:
    """What an operator should know of these settings before they do harm."""
    is_keyed = settings.tenant.pepper is not None or settings.tenant.source == "fixed"
    found = []
    if settings.store.url.lower().startswith("redis") and not is_keyed:
        found.append(
            "tenant.pepper is not set: anyone who can read the Redis can test guesses of the callers' credentials;"
            " set it to one secret on all replicas"
        )
    if settings.open_to_all and (keys := keys_of(settings)) and not is_loopback(settings.host):
        place = f"{settings.host}:{settings.port}"
        found.append(f"anyone who reaches {place} can use {' and '.join(keys)}: open_to_all is true")
    return found


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


def gives_the_key_away(settings: Settings) -> bool:
    """Whether anyone who reaches the port could spend one of the operator's keys."""
    behind_a_proxy = settings.tenant.source.startswith("header:")
    is_open = not (is_loopback(settings.host) or behind_a_proxy or settings.open_to_all)
    return is_open and bool(keys_of(settings))


def keys_of(settings: Settings) -> list[str]:
    """The names of the operator's keys with which calls for clients are made."""
    holders: dict[str, UpstreamSettings | ModelRole | None] = {
        "upstream": settings.upstream,
        "summarizer": settings.summarizer,
        "judge": settings.judge,
    }
    for i, entry in enumerate(settings.models):
        holders |= {f"models[{i}].summarizer": entry.summarizer, f"models[{i}].judge": entry.judge}
    return [f"{name}.api_key" for name, holder in holders.items() if holder and holder.api_key]


def server_config(settings: Settings) -> ServerConfig:
    """The server's configuration: the upstream's own `date` and `server` headers, and no log but ours.

    uvicorn uses uvloop and httptools where they are installed. Each worker makes an app of its own.
    """
    return ServerConfig(
        partial(worker_app, settings),
        settings.drain,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        lifespan="on",
        http=partial(Connection, ConnectionBounds.of(settings.limits)),
        ws="none",
        access_log=False,
        log_config=None,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
    )


def worker_app(settings: Settings, drain: Drain) -> FastAPI:
    """The app of one worker process, with logging configured."""
    configure_logging(settings.log)
    use_one_heap()
    app = create_app(settings, drain=drain)
    serving = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with serving(app):
            gc.freeze()  # what exists by now stays, and no collection need look at it
            yield

    app.router.lifespan_context = lifespan
    return app


def banner(settings: Settings, port: int) -> str:
    """What a person wants to see first: where the proxy listens, what it uses, and what a client must be given."""
    return (
        f"condenser listens on {listening_url(settings.host, port)}/v1\n"
        f"  upstream   {redacted(settings.upstream.base_url)}\n"
        f"  store      {redacted(settings.store.url)}\n"
        f"  strategy   {settings.strategy}\n"
        f'  client     OpenAI(base_url="{client_url(settings.host, port)}/v1")'
    )


def use_one_heap() -> None:
    """Has all threads that begin after this share one heap; does nothing where the allocator is not glibc's.

    By default each thread has a heap of its own, up to eight for each core. What the caches keep lies between what was
    freed, in every heap, and the process grows by tens of megabytes that nothing uses. Python's threads take turns
    anyway, so one heap costs them nothing.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(-8, 1)  # M_ARENA_MAX
