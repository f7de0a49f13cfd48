"""Run the proxy."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import SecretStr

from proxy import LOGGER
from proxy.callers.tenants import tenant_key
from proxy.cli import OK, USAGE
from proxy.commands.options import add_settings_arguments, command_line_settings, settings_from
from proxy.commands.running import (
    HOST,
    PORT,
    Note,
    answer_hangup,
    client_url,
    configured_place,
    configured_url,
    listening_url,
    living,
    noted,
)
from proxy.errors import CommandFailed, SettingsError
from proxy.http.server import FORKS, Server, ServerConfig, Supervisor, use_one_heap
from proxy.log import configure_logging
from proxy.quoting import in_words, one_line, redacted
from proxy.servers.upstream.choice import destinations, shown, taking_credentials
from proxy.settings import Settings, load_settings
from proxy.settings.loading import model_table
from proxy.settings.reloading import taken_over, waiting
from proxy.settings.token import admin_token, is_loopback, new_code, token_file
from proxy.store import open_store, try_store
from proxy.store.base import WEAKNESSES, StoreError
from proxy.tokens.counter import Tokenizers

_log = logging.getLogger(LOGGER)

_KEY_GIVEN_AWAY = """refusing to start on {host} with {keys}:
anyone who reaches the port could use your key. Ways out, one of them:
  - listen on this machine only: --host 127.0.0.1
  - leave the key out, so that only the credentials of the callers are used
  - give each caller a key of the proxy's own: auth.mode = "keys"
  - put a proxy that authenticates in front, and name tenants by it: tenant.from = "header:NAME"
  - say that it is meant: open_to_all = true, or CONDENSER_OPEN_TO_ALL=true; so a container listens whose port is
    published on this machine only (-p 127.0.0.1:8484:8484)"""
_NOT_ONE_USER = """refusing to start on {host} with --single-user (single_user):
all who reach the port would share one person's sessions. Listen on this machine only (--host 127.0.0.1), or leave the
option out: each credential then has its own sessions."""
_STORE_NOT_SHARED = """refusing to start several workers with memory://, which is the memory of one of them:
a conversation's next request would mostly reach another. Give them a store to share: a SQLite file or Redis."""
_NO_PEPPER = (
    "tenant.pepper is not set: anyone who can read the Redis can test guesses of the callers' credentials."
    " Set it to the same secret on all replicas"
)
_SHORT = 16
_GUESSABLE = "admin.token has fewer than %d characters, so it can be guessed; `openssl rand -hex 24` prints a good one"
_SHARED_CREDENTIALS = (
    "the upstreams %s all get the caller's own key: with a wrong model name, the key for one goes to another."
    " Set api_key, or takes_credentials = false for those that need no key"
)
_FIRST_KEY = "models: a key of the operator, where the settings had none, needs a new start of the proxy"
_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # the client library reads this variable when it is imported
NOT_STARTED = 3


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", help=f"the address to listen on ({HOST})")
    command.add_argument("--port", type=int, help=f"the port to listen on ({PORT}); 0 takes any free one")
    command.add_argument(
        "--single-user", action="store_true", default=None, help="one person's proxy: all credentials share sessions"
    )
    command.add_argument("--workers", metavar="N", type=int, help="processes that serve the port (1)")
    add_settings_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal stops it; refuses settings that would give a key away or split sessions."""
    os.environ.pop(_METRICS, None)  # another program's metrics would be shown among ours
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server logs it; workers begin with this too
    configured = configured_url()
    settings = settings_from(arguments)
    prepare(settings)
    reread = Rereading(command_line_settings(arguments), settings)
    settings = with_token(settings).with_handles(of_run=False)
    with ExitStack() as stack:
        sockets = [stack.enter_context(bound_socket(settings.host, settings.port))]
        if settings.admin.address is not None:
            sockets.append(stack.enter_context(bound_socket(*settings.admin.address, option="admin.listen")))
            settings = _with_admin_at(settings, sockets[1].getsockname()[1])
        note = note_of(settings, configured, sockets[0].getsockname()[1])
        if reread.before.admin.token is None and settings.admin.token is not None:  # made here, and known to nobody yet
            note = note._replace(token=settings.admin.token.get_secret_value())
        stack.enter_context(noted(note))
        return _serve(settings, sockets, reread)


def _with_admin_at(settings: Settings, port: int) -> Settings:
    """The settings with the port that the second listener has; that of the settings may be 0."""
    listen = listening_url(settings.admin_host, port).removeprefix("http://")
    return settings.model_copy(update={"admin": settings.admin.model_copy(update={"listen": listen})})


def _serve(settings: Settings, sockets: list[socket.socket], reread: Rereading) -> int:
    """Serves with one process, or with several that share the sockets.

    A worker that dies is replaced, unless it could not start. Several have a directory for their metrics, and share the
    memory of the tokenizer where they can.
    """
    port = sockets[0].getsockname()[1]
    announced = f"{banner(settings, port)}\n  dashboard  {_dashboard(settings, _admin_url(settings, port))}"
    if settings.workers == 1:
        from proxy.app import server_config

        server = AnnouncedServer(server_config(settings, reread), partial(print, announced, flush=True))
        server.run(sockets)
        return OK if server.started else NOT_STARTED
    print(announced, flush=True)
    with TemporaryDirectory(prefix="condenser-") as shared:
        os.environ[_METRICS] = shared
        from proxy.app import server_config
        from proxy.telemetry import forget_worker

        config = server_config(settings, reread)
        if FORKS:
            Tokenizers(settings.tokenizer.ranks_dir).encoder().load()
        return OK if Supervisor(config, sockets, forget_worker).run() else NOT_STARTED


@dataclass(frozen=True)
class Rereading:
    """Reads the settings again, by the same command line; tells the log and `condenser reload` what came of it."""

    given: Mapping[str, Any]  # what the command line sets
    before: Settings  # as they were read at the start

    def __call__(self, running: Settings, use: Callable[[Settings], None]) -> None:
        is_right = False
        try:
            read = load_settings(**self.given)
            new = _usable(taken_over(running, read), running)
            model_table()  # so that a broken one is told here
        except SettingsError as error:
            text = f"the settings were not reloaded, because they have an error: {one_line(str(error))}"
            _log.error(text)
        else:
            use(new)
            later = ", ".join(waiting(self.before, read))
            holds = f"keys {len(new.auth.keys)}, models {len(new.models)}, log level {new.log.level}"
            text = f"the settings were reloaded: {holds}" + (f"; after a restart: {later}" if later else "")
            _log.info(text)
            is_right = True
        try:
            answer_hangup(is_right=is_right, text=text)
        except OSError as error:
            _log.warning("`condenser reload` gets no answer, because it cannot be written: %s", error.strerror)


def _usable(new: Settings, running: Settings) -> Settings:
    """`new`, which holds a key of the operator, or names an upstream, only if the running settings do.

    Raises `SettingsError`.
    """
    if gives_the_key_away(new) or (new.operator_keys and not running.operator_keys):
        raise SettingsError(_FIRST_KEY)
    try:
        return new.known_upstreams()
    except ValueError as error:
        raise SettingsError(f"{error}; others hold from the next start") from None


class AnnouncedServer(Server):
    def __init__(self, config: ServerConfig, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()


def banner(settings: Settings, port: int) -> str:
    """The first output: where the proxy listens, what it uses, and how to configure a client."""
    return (
        f"condenser listens on {listening_url(settings.host, port)}/v1\n"
        f"  upstream   {shown(destinations(settings))}\n"
        f"  store      {redacted(settings.store.url)}\n"
        f"  strategy   {settings.strategy}\n"
        f'  client     OpenAI(base_url="{client_url(settings.host, port)}/v1")'
    )


def with_token(settings: Settings) -> Settings:
    """The settings with an admin token: where there is none, one that all replicas derive from `tenant.pepper`.

    Without a pepper it is a new one, which only this process and its workers know.
    """
    if admin_token(settings) is not None:
        return settings
    pepper = settings.tenant.pepper
    token = secrets.token_urlsafe()
    if pepper is not None:
        token = blake2b(pepper.get_secret_value().encode(), person=b"admin.token").hexdigest()
    return settings.model_copy(update={"admin": settings.admin.model_copy(update={"token": SecretStr(token)})})


def _admin_url(settings: Settings, port: int) -> str:
    """The address of pages and admin API for a client on this machine; `port` is the one for requests."""
    return client_url(*(settings.admin.address or (settings.host, port)))


def _dashboard(settings: Settings, url: str) -> str:
    """The dashboard's address; where only the operator reads this, one that signs in once, within some minutes."""
    if not (settings.single_user or sys.stdout.isatty()):
        return f"{url}/_condenser/ (`condenser dashboard` prints a link that signs in)"
    token = admin_token(settings) or ""
    return f"{url}/_condenser/?code={new_code(token.encode(), time.time(), secrets.token_urlsafe(16))}"


def bound_socket(host: str, port: int, option: str = "--port") -> socket.socket:
    """A socket at an address, with IPv4 if the host has both kinds; raises `CommandFailed`, which names the option."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
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
    except OSError as error:
        raise CommandFailed(_why_not_bound(host, port, option, error), NOT_STARTED) from None
    return bound


def _why_not_bound(host: str, port: int, option: str, error: OSError) -> str:
    place = f"port {port} of {host}"
    if error.errno == errno.EADDRINUSE:
        free = "any free one with --port 0" if option == "--port" else "0 for any free one"
        by = "a Condenser" if client_url(host, port) in {note.url for note in living()} else "another program"
        return f"{place} is taken by {by}; choose another port with {option}, or {free}"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        named = "--host" if option == "--port" else option
        return f"{host} is no address of this machine; {named} names the one to listen on"
    return f"{place} cannot be listened on: {(error.strerror or '').lower()}"


def note_of(settings: Settings, configured: str, port: int) -> Note:
    token = token_file(settings)
    path = os.path.abspath(token) if token else None
    admin = client_url(*settings.admin.address) if settings.admin.address is not None else None
    return Note(
        client_url(settings.host, port),
        configured,
        path,
        time.time(),
        admin,
        handles=settings.handles.token,
        place=configured_place(),
    )


# Checks before the proxy starts


def prepare(settings: Settings) -> None:
    """Checks settings and store, and sets up the log; raises `CommandFailed`."""
    keys = " and ".join(settings.operator_keys)
    if gives_the_key_away(settings):
        raise CommandFailed(_KEY_GIVEN_AWAY.format(host=settings.host, keys=keys), USAGE)
    if settings.single_user and not is_loopback(settings.host):
        raise CommandFailed(_NOT_ONE_USER.format(host=settings.host), USAGE)
    if settings.workers > 1 and settings.store.url == "memory://":
        raise CommandFailed(_STORE_NOT_SHARED, USAGE)
    configure_logging(settings.log)
    use_one_heap()
    try:
        asyncio.run(_try_store(settings))
        tenant_key(settings)
        admin_token(settings)
    except (StoreError, OSError, ValueError) as error:
        why = f"store.url is {redacted(settings.store.url)}, which cannot be opened: {in_words(error)}"
        raise CommandFailed(why, NOT_STARTED) from None
    if settings.admin.token is not None and len(settings.admin.token.get_secret_value()) < _SHORT:
        _log.warning(_GUESSABLE, _SHORT)
    is_keyed = settings.tenant.pepper is not None or settings.tenant_source == "fixed"
    if settings.store.url.startswith("redis") and not is_keyed:
        _log.warning(_NO_PEPPER)
    if named := taking_credentials(destinations(settings)):
        _log.warning(_SHARED_CREDENTIALS, ", ".join(named))
    if settings.open_to_all and keys and settings.auth.mode != "keys" and not is_loopback(settings.host):
        place = f"{settings.host}:{settings.port}"
        _log.warning("anyone who reaches %s can use %s: open_to_all is true", place, keys)


async def _try_store(settings: Settings) -> None:
    """Opens the store before the port is taken, because an error in the server would print a traceback.

    Only warns if the store does not answer: its server may be down when the proxy starts, or its address wrong.
    """
    keys = settings.store.encryption_keys
    store = await open_store(settings.store.url, keys=keys)
    try:
        async with asyncio.timeout(settings.store.timeout):
            await try_store(store, keys)
            for weakness in await store.weaknesses():
                _log.warning(WEAKNESSES[weakness])
    except (StoreError, TimeoutError) as error:
        if isinstance(error, StoreError) and error.reason == "store-key":
            raise
        why = str(error) or f"{redacted(settings.store.url)} gave no answer in time"
        _log.warning("the store cannot be reached, and requests are served without it until it answers: %s", why)
    finally:
        await store.close()


def gives_the_key_away(settings: Settings) -> bool:
    """Whether anyone who reaches the port could spend one of the operator's keys."""
    behind_a_proxy = settings.tenant_source.startswith("header:")
    has_keys = settings.auth.mode == "keys"
    is_open = not (is_loopback(settings.host) or behind_a_proxy or settings.open_to_all or has_keys)
    return is_open and bool(settings.operator_keys)
