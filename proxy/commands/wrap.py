"""Run a command behind a proxy of its own, and print a receipt at its end.

The proxy listens on a free port of this machine. The command finds it by OPENAI_BASE_URL, OPENAI_API_BASE and
ANTHROPIC_BASE_URL, gets the signals that are sent here, and its exit status is returned.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import SecretStr

from proxy.app import server_config
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.proxy_client import ask, session_path
from proxy.commands.receipt import Receipt
from proxy.commands.running import HOST, client_url, configured_url, noted
from proxy.commands.starting import NOT_STARTED, bound_socket, note_of, why_not_started
from proxy.http.server import Server
from proxy.quoting import redacted
from proxy.settings import CONFIG_VARIABLE, PREFIX, Settings
from proxy.settings.tables import AdminSettings
from proxy.settings.token import admin_token
from proxy.values import json_or_none

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_KILLED = 128
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `wrap`."""
    command.usage = "condenser wrap [OPTION ...] -- COMMAND [ARGUMENT ...]"
    command.add_argument("--port", type=int, default=0, help="the port of the proxy; by default any free one")
    add_settings_arguments(command)
    command.add_argument("words", metavar="COMMAND", nargs="+", help="the command with its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status, or 128 and the number of the signal that ended it."""
    configured, arguments.host, arguments.workers = configured_url(), HOST, 1
    settings = _quiet(settings_from(arguments))
    if code := why_not_started(settings):
        return code
    try:
        listening = bound_socket(HOST, settings.port)
    except OSError as error:
        print(f"condenser: port {settings.port} cannot be listened on: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    port = listening.getsockname()[1]
    url, token = client_url(HOST, port), admin_token(settings) or secrets.token_urlsafe()
    note = note_of(settings, configured, port)
    settings = settings.model_copy(update={"admin": AdminSettings(token=SecretStr(token))})
    with listening, noted(note), _serving(settings, listening) as has_started:
        if not has_started:
            return NOT_STARTED
        code = _run(arguments.words, _environment(url))
        print("\n".join(_receipt(url, token, settings, arguments)), file=sys.stderr, flush=True)
    return code


def _quiet(settings: Settings) -> Settings:
    """The settings with a log that leaves the terminal to the command, unless they say what to log."""
    if "level" in settings.log.model_fields_set:
        return settings
    return settings.model_copy(update={"log": settings.log.model_copy(update={"level": "error"})})


@contextmanager
def _serving(settings: Settings, listening: socket.socket) -> Iterator[bool]:
    """Serves in a thread, so that the proxy ends with this process however that ends; yields whether it started."""
    server, is_settled = _Server(server_config(settings)), threading.Event()
    server.is_settled = is_settled

    def serve() -> None:
        try:
            server.run([listening])
        finally:
            is_settled.set()

    thread = threading.Thread(target=serve, name="proxy")
    thread.start()
    is_settled.wait()
    try:
        yield server.started
    finally:
        server.should_exit = True
        thread.join()


class _Server(Server):
    is_settled: threading.Event

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_settled.set()


def _environment(url: str) -> dict[str, str]:
    """The command's environment; the commands of `condenser` find this proxy there too.

    A proxy that the environment names for requests to the internet is not asked for this one.
    """
    host, port = url.removeprefix("http://").rsplit(":", 1)
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), host]))
    addresses = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    own = {f"{PREFIX}HOST": host, f"{PREFIX}PORT": port, "NO_PROXY": direct, "no_proxy": direct}
    return {**os.environ, **addresses, **own}


def _run(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit status of the command, which gets every signal that comes meanwhile."""
    started: list[subprocess.Popen[bytes]] = []
    waiting: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number in _FROM_TERMINAL and _is_in_foreground():
            return  # the terminal has sent it to the command as well
        if started:
            started[0].send_signal(number)
        else:
            waiting.append(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        with subprocess.Popen(words, env=environment) as process:  # noqa: S603
            started.append(process)
            for number in waiting:
                process.send_signal(number)
            code = process.wait()
    except OSError as error:
        print(f"condenser: {words[0]}: {(error.strerror or '').lower()}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else _KILLED - code


def _is_in_foreground() -> bool:
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _receipt(url: str, token: str, settings: Settings, arguments: argparse.Namespace) -> Iterator[str]:
    live = _json(url, "/_condenser/live", token)
    rows = live.get("data", [])
    documents = [_json(url, session_path(row["id"], tenant=row["tenant"]), token) for row in rows]
    exposition = ask(url, "/metrics").body.decode()
    kept = settings.store.url != "memory://"
    yield from Receipt(exposition, rows, documents, _look(arguments) if kept else "").lines()


def _json(url: str, path: str, token: str) -> dict[str, Any]:
    document = json_or_none(ask(url, path, token=token).body)
    return document if isinstance(document, dict) else {}


def _look(arguments: argparse.Namespace) -> str:
    """The command that shows a session afterwards, without the session's id."""
    given = {"--config": os.environ.get(CONFIG_VARIABLE), "--store": arguments.store and redacted(arguments.store)}
    words = [word for name, value in given.items() if value for word in (name, value)]
    return f"{shlex.join(['condenser', 'wrap', *words])} -- condenser sessions show"
