"""Run a command behind a proxy of its own, and print a receipt at its end.

The proxy listens on a free port of this machine. The command finds it by OPENAI_BASE_URL, OPENAI_API_BASE and
ANTHROPIC_BASE_URL; claude, codex and opencode get what they need besides. Addresses that it had there before are the
proxy's upstreams, unless --upstream names one. The proxy has one user, and so one tenant. Signals that are sent here
are passed on to the command, and its exit status is returned.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from pydantic import SecretStr

from proxy import LOGGER
from proxy.app import server_config
from proxy.cli import USAGE
from proxy.commands.known_commands import (
    ANTHROPIC,
    TOOL_SEARCH,
    VARIABLES,
    keeps_tool_search,
    pointed,
    upstreams_for,
    with_handles,
)
from proxy.commands.offer import offer
from proxy.commands.options import add_settings_arguments, program, settings_from
from proxy.commands.proxy_client import ask, session_path
from proxy.commands.running import HOST, client_url, configured_url, noted
from proxy.commands.serve import NOT_STARTED, AnnouncedServer, bound_socket, note_of, prepare
from proxy.conversations.totals import figures, money
from proxy.errors import CommandFailed
from proxy.quoting import one_line, printable, redacted
from proxy.settings import CONFIG_VARIABLE, PREFIX, Settings
from proxy.settings.tables import AdminSettings
from proxy.settings.token import admin_token
from proxy.values import json_or_none
from strategies.core.ledger import Ledger, split_ledger

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_KILLED = 128
_log = logging.getLogger(LOGGER)
_HUNG_UP = "SIGHUP changes nothing: to use new settings, start the command again"
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_MAX_QUOTED, _MAX_LOOKS = 3, 5
_TRIGGER = "trigger_"
_SHOWN = 90  # characters of a rule


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.usage = "condenser wrap [OPTION ...] -- COMMAND [ARGUMENT ...]"
    command.add_argument("--port", type=int, default=0, help="the port of the proxy; by default any free one")
    add_settings_arguments(command)
    told = "give claude or codex two tools that read back what was left out; their schemas stand in every prompt"
    command.add_argument("--handles", action="store_true", help=told)
    command.add_argument("words", metavar="COMMAND", nargs="+", help="the command with its arguments, after --")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit status, or 128 plus the number of the signal that ended it."""
    configured, arguments.host, arguments.workers, arguments.single_user = configured_url(), HOST, 1, True
    settings = quiet(settings_from(arguments))
    settings = settings.model_copy(update={"admin": AdminSettings(token=settings.admin.token)})  # all at one port
    settings = settings.with_handles(of_run=True)
    prepare(settings)
    with bound_socket(settings.host, settings.port) as listening:
        return _wrap(arguments, settings, configured, listening)


def _wrap(arguments: argparse.Namespace, settings: Settings, configured: str, listening: socket.socket) -> int:
    port = listening.getsockname()[1]
    words: Sequence[str] = arguments.words
    if arguments.handles:
        if (registered := with_handles(words, client_url(HOST, port))) is None:
            raise CommandFailed(f"--handles is for claude and codex; {words[0]} registers MCP servers itself", USAGE)
        words = registered
    with (
        noted(note_of(settings, configured, port)),
        proxied(words, arguments.upstream, settings, listening) as found,
    ):
        code = _run(found.words, found.environment)
        print("\n".join(_receipt(found.url, found.token, found.settings, arguments)), file=sys.stderr, flush=True)
    return code


class Proxied(NamedTuple):
    """A command as it runs behind a proxy of its own, and that proxy."""

    words: Sequence[str]
    environment: Mapping[str, str]
    url: str
    token: str
    settings: Settings


@contextmanager
def proxied(
    words: Sequence[str], upstream: str | None, settings: Settings, listening: socket.socket
) -> Iterator[Proxied]:
    """Serves for a command, which is not run here; raises `CommandFailed`."""
    url, token = client_url(HOST, listening.getsockname()[1]), admin_token(settings) or secrets.token_urlsafe()
    own = {name: value for name, value in os.environ.items() if not (upstream and name in VARIABLES)}
    command = pointed(words, url, own)
    settings = settings if upstream else upstreams_for(settings, command.addresses)
    if command.note:
        print(command.note, file=sys.stderr)
    settings = settings.model_copy(update={"admin": AdminSettings(token=SecretStr(token))})
    has_search = keeps_tool_search(command.addresses)
    variables = {**_environment(url, keeps_tool_search=has_search), **command.variables}
    with _serving(settings, listening) as has_started:
        if not has_started:
            raise CommandFailed("the proxy did not start", NOT_STARTED)
        yield Proxied(command.words, variables, url, token, settings)


def quiet(settings: Settings) -> Settings:
    """The settings with only errors in the log, so that the terminal is the command's, unless they set a level."""
    if "level" in settings.log.model_fields_set:
        return settings
    return settings.model_copy(update={"log": settings.log.model_copy(update={"level": "error"})})


@contextmanager
def _serving(settings: Settings, listening: socket.socket) -> Iterator[bool]:
    """Serves in a thread, so that the proxy ends with this process in any case; yields whether it started."""
    is_settled = threading.Event()
    server = AnnouncedServer(server_config(settings), is_settled.set)

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


def _environment(url: str, *, keeps_tool_search: bool) -> dict[str, str]:
    """The command's environment, by which commands of `condenser` find this proxy too.

    The proxy's settings, which may be secret, are not in it. Requests to this proxy do not go through a proxy to the
    internet that the environment names. Claude Code switches its tool search off if the address is not
    Anthropic's own; `keeps_tool_search` sets the variable that keeps it on.
    """
    host, port = url.removeprefix("http://").rsplit(":", 1)
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), host]))
    addresses = {variable: url if name == ANTHROPIC else f"{url}/v1" for variable, name in VARIABLES.items()}
    own = {f"{PREFIX}HOST": host, f"{PREFIX}PORT": port, "NO_PROXY": direct, "no_proxy": direct}
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    search = {TOOL_SEARCH: "true"} if keeps_tool_search else {}
    return {**search, **others, **addresses, **own}


def _run(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command, passes signals on to it, and returns its exit status."""
    try:
        process = subprocess.Popen(words, env=environment)  # noqa: S603
    except OSError as error:
        print(f"condenser: {words[0]}: {(error.strerror or '').lower()}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE

    def pass_on(number: int, _frame: FrameType | None) -> None:
        # The terminal sends its signals to the command too.
        if number not in _FROM_TERMINAL or not _is_in_foreground():
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda _number, _frame: _log.info(_HUNG_UP))
    try:
        with process:
            code = process.wait()
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


# The receipt


def _receipt(url: str, token: str, settings: Settings, arguments: argparse.Namespace) -> Iterator[str]:
    """A summary of the run for a person, made of this proxy's sums and the sessions that it has used."""
    answer = asked_json(url, "/_condenser/sums?hours=1", token)
    sums: Counter[str] = Counter(answer.get("replica"))
    if not sums["requests"]:
        yield "condenser: the command sent no request through the proxy"
        return
    # The store may be another proxy's too, so only its own word counts for what it has served.
    read = [asked_json(url, session_path(*key), token) for key in answer["used"]]
    documents = [document for document in read if "id" in document]
    ids = [document["id"] for document in documents]
    yield ""
    yield "condenser receipt"
    parts = _totals(sums), _kept(documents), figures(sums, answer["currency"]), _looks(ids, settings, arguments)
    rows = asked_json(url, "/_condenser/arrivals", token).get("data", [])
    found = offer(documents, rows, sums["started"])
    for title, text in chain(*parts, _next(found, answer["currency"], settings, arguments)):
        yield f"  {title:<14} {text}"


def asked_json(url: str, path: str, token: str) -> dict[str, Any]:
    document = json_or_none(ask(url, path, token=token).body)
    return document if isinstance(document, dict) else {}


_Rows = Iterator[tuple[str, str]]


def _totals(sums: Counter[str]) -> _Rows:
    shortened = sums["action_condensed"] + sums["action_replayed"]
    failed = f", {sums['failed']:,} failed" if sums["failed"] else ""
    yield "requests", f"{sums['requests']:,}" + (f", {shortened:,} on condensed history" if shortened else "") + failed
    triggers = Counter({name.removeprefix(_TRIGGER): n for name, n in sums.items() if name.startswith(_TRIGGER)})
    listed = ", ".join(f"{trigger} {count}" for trigger, count in triggers.most_common())
    yield "condensations", f"{triggers.total():,} ({listed})" if listed else "none: everything fitted"


def _kept(documents: Sequence[Mapping[str, Any]]) -> _Rows:
    ledgers = [ledger for document in documents if (ledger := _ledger(document)) is not None]
    if not ledgers:
        return
    said = [line.strip().removeprefix("- ") for ledger in ledgers for line in ledger.said]
    names = sum(len(ledger.names) for ledger in ledgers)
    parts = ((len(said), "line of the user", "lines of the user"), (names, "name", "names"))
    told = (f"{count:,} {one if count == 1 else many}" for count, one, many in parts if count)
    text = ", ".join(told)
    yield "kept", f"{text}, word for word" if text else "the user had said nothing in what was replaced"
    for line in said[:_MAX_QUOTED]:
        yield "", f"“{printable(one_line(line), _SHOWN)}”"


def _ledger(document: Mapping[str, Any]) -> Ledger | None:
    """The ledger of the latest condensation of a session; None if there is none with a replacement."""
    latest = document.get("latest_condensation")
    records = [record for record in document.get("condensations", ()) if record["id"] == latest]
    pieces = [piece for record in records for piece in record["pieces"] if isinstance(piece, dict)]
    texts = [_text(json.loads(piece["raw"])) for piece in pieces if piece["kind"] == "replacement"]
    return split_ledger("\n".join(texts))[1] if texts else None


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = [value[name] for name in ("content", "text") if name in value]
    return "\n".join(map(_text, value)) if isinstance(value, list) else str(value)


def _next(found: tuple[float, float] | None, currency: str, settings: Settings, arguments: argparse.Namespace) -> _Rows:
    """What to do, in money, where `economy = "auto"` would have been cheaper."""
    if found is None or settings.economy == "auto":
        return
    share, amount = found
    told = f"economy=auto would have cut this session's prompts by {share:.0%}".replace("%", " %")
    yield "cheaper", told + (f" (about {money(amount, currency)}):" if amount else ":")
    words = shlex.join(arguments.words)
    command = words if len(words) <= _SHOWN else f"{shlex.quote(arguments.words[0])} …"
    yield "", f"{shlex.join([*program(), 'wrap', *_given(arguments), '--economy', 'auto'])} -- {command}"


def _given(arguments: argparse.Namespace) -> list[str]:
    """The options that the same command needs again."""
    given = {"--config": os.environ.get(CONFIG_VARIABLE), "--store": arguments.store and redacted(arguments.store)}
    return [word for name, value in given.items() if value for word in (name, value)]


def _looks(ids: Sequence[str], settings: Settings, arguments: argparse.Namespace) -> _Rows:
    if not ids or settings.store.url == "memory://":
        why = "the store was in memory; name one with --store to keep sessions"
        yield "look", f"nothing is left: {'no conversation was long enough to be stored' if not ids else why}"
        return
    words = _given(arguments)
    for name in ids[:_MAX_LOOKS]:
        yield "look", shlex.join([*program(), "sessions", "show", name, *words])
    if len(ids) > _MAX_LOOKS:
        yield "", f"and {len(ids) - _MAX_LOOKS} more: {shlex.join([*program(), 'sessions', 'list', *words])}"
    yield "dashboard", f"{shlex.join([*program(), 'serve', *words])} prints its address"
