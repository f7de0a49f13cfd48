"""Run a command behind a proxy of its own, and print a receipt at its end.

The proxy listens on a free port of this machine. The command finds it by OPENAI_BASE_URL, OPENAI_API_BASE and
ANTHROPIC_BASE_URL, gets the signals that are sent here, and its exit status is returned.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from typing import Any

from pydantic import SecretStr

from proxy.app import server_config
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.proxy_client import ask, session_path
from proxy.commands.running import HOST, client_url, configured_url, noted
from proxy.commands.serve import NOT_STARTED, AnnouncedServer, bound_socket, note_of, prepare
from proxy.errors import CommandFailed
from proxy.quoting import one_line, printable, redacted
from proxy.settings import CONFIG_VARIABLE, PREFIX, Settings
from proxy.settings.tables import AdminSettings
from proxy.settings.token import admin_token
from proxy.values import json_or_none
from strategies.core.ledger import Ledger, split_ledger

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_KILLED = 128
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_MAX_QUOTED, _MAX_LOOKS = 3, 5
_SHOWN = 90  # characters of a rule
_SAMPLE = re.compile(r"condenser_(\w+)_total\{(.*)\} ([0-9.e+]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


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
    prepare(settings)
    try:
        listening = bound_socket(HOST, settings.port)
    except OSError as error:
        raise CommandFailed(f"port {settings.port} cannot be listened on: {error.strerror}", NOT_STARTED) from None
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


def _json(url: str, path: str, token: str) -> dict[str, Any]:
    document = json_or_none(ask(url, path, token=token).body)
    return document if isinstance(document, dict) else {}


# The receipt


def _receipt(url: str, token: str, settings: Settings, arguments: argparse.Namespace) -> Iterator[str]:
    """What the run came to, in lines for a person: made of the metrics, the live rows and the sessions."""
    exposition = ask(url, "/metrics").body.decode()
    requests = _counts(exposition, "requests", "action")
    if not requests:
        yield "condenser: the command sent no request through the proxy"
        return
    rows = _json(url, "/_condenser/live", token).get("data", [])
    documents = [_json(url, session_path(row["id"], tenant=row["tenant"]), token) for row in rows]
    yield ""
    yield "condenser receipt"
    parts = (
        _totals(exposition, requests),
        _kept(documents),
        _own_calls(exposition),
        _money(rows),
        _looks(documents, _look(arguments) if settings.store.url != "memory://" else ""),
    )
    for title, text in chain(*parts):
        yield f"  {title:<14} {text}"


def _counts(exposition: str, name: str, label: str) -> Counter[str]:
    """The totals of a metric above 0, by one of its labels."""
    found: Counter[str] = Counter()
    for each, labels, value in _SAMPLE.findall(exposition):
        if each == name and float(value):
            found[dict(_LABEL.findall(labels)).get(label, "")] += round(float(value))
    return found


def _totals(exposition: str, requests: Counter[str]) -> Iterator[tuple[str, str]]:
    shortened = requests["condensed"] + requests["replayed"]
    yield "requests", f"{requests.total():,}" + (f", {shortened:,} on condensed history" if shortened else "")
    tokens = _counts(exposition, "tokens", "stage")
    before, after = tokens["before"], tokens["after"]
    share = f" ({1 - after / before:.0%})" if before else ""
    yield "tokens sent", f"{after:,} of {before:,}"
    yield "tokens saved", f"{before - after:,}{share}"
    triggers = _counts(exposition, "condensations", "trigger")
    listed = ", ".join(f"{trigger} {count}" for trigger, count in triggers.most_common())
    yield "condensations", f"{triggers.total():,} ({listed})" if listed else "none: everything fitted"


def _kept(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    ledgers = [ledger for document in documents if (ledger := _ledger(document)) is not None]
    if not ledgers:
        return
    rules = [rule for ledger in ledgers for rule in ledger.rules]
    names, facts = sum(len(each.names) for each in ledgers), sum(len(each.facts) for each in ledgers)
    parts = ((len(rules), "rule"), (names, "name"), (facts, "fact"))
    said = ", ".join(f"{count:,} {word}{'' if count == 1 else 's'}" for count, word in parts if count)
    yield "kept", f"{said}, word for word" if said else "no rules, names or facts were found"
    for rule in rules[:_MAX_QUOTED]:
        yield "", f"“{printable(one_line(rule), _SHOWN)}”"


def _ledger(document: Mapping[str, Any]) -> Ledger | None:
    """The ledger of the latest condensation of a session; None where there is no condensation with a replacement."""
    latest = document.get("latest_condensation")
    records = [each for each in document.get("condensations", ()) if each["id"] == latest]
    pieces = [piece for record in records for piece in record["pieces"] if isinstance(piece, dict)]
    texts = [_text(json.loads(piece["raw"])) for piece in pieces if piece["kind"] == "replacement"]
    return split_ledger("\n".join(texts))[1] if texts else None


def _text(value: Any) -> str:
    """The texts in a message of any protocol."""
    if isinstance(value, dict):
        value = [each for name, each in value.items() if name in ("content", "text")]
    return "\n".join(map(_text, value)) if isinstance(value, list) else str(value)


def _own_calls(exposition: str) -> Iterator[tuple[str, str]]:
    calls, ended = _counts(exposition, "calls", "role"), _counts(exposition, "calls", "outcome")
    tokens = _counts(exposition, "tokens", "stage")
    own, failed = tokens.total() - tokens["before"] - tokens["after"], ended.total() - ended["answered"]
    text = f"{calls.total():,}, {own:,} tokens" + (f", {failed:,} failed" if failed else "")
    yield "own calls", text if calls else "none"


def _money(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    priced = [row for row in rows if row["cost"] is not None]
    if not priced:
        return
    cost, saved = (sum(row[name] for row in priced) for name in ("cost", "saved_cost"))
    unpriced = "" if len(priced) == len(rows) else ", where prices are known"
    yield "money", f"{cost:,.4f} spent{unpriced}; at least {saved:,.4f} saved; own calls apart"


def _looks(documents: Sequence[Mapping[str, Any]], look: str) -> Iterator[tuple[str, str]]:
    """How to look at the sessions afterwards; `look` is "" where none is kept."""
    stored = [document["id"] for document in documents if "id" in document]
    if not look:
        yield "look", "nothing is left: the store was in memory; name one with --store to keep sessions"
    elif not stored:
        yield "look", "nothing is left: no conversation was long enough to be stored"
    else:
        for name in stored[:_MAX_LOOKS]:
            yield "look", f"{look} {shlex.quote(name)}"
        if len(stored) > _MAX_LOOKS:
            yield "", f"and {len(stored) - _MAX_LOOKS} more: {look.removesuffix(' show')} list"


def _look(arguments: argparse.Namespace) -> str:
    """The command that shows a session afterwards, without the session's id."""
    given = {"--config": os.environ.get(CONFIG_VARIABLE), "--store": arguments.store and redacted(arguments.store)}
    words = [word for name, value in given.items() if value for word in (name, value)]
    return f"{shlex.join(['condenser', 'wrap', *words])} -- condenser sessions show"
