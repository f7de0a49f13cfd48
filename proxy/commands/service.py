"""Run the proxy for this user at every login: as a unit of systemd, or on macOS as an agent of launchd."""

from __future__ import annotations

import argparse
import os
import plistlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy.cli import FAILED, OK
from proxy.commands.options import add_settings_arguments, settings_from
from proxy.commands.proxy_client import ask
from proxy.commands.running import HOST, client_url, note_at
from proxy.package import VERSION
from proxy.values import json_or_none

UNIT = """[Unit]
Description=Condenser {name}

[Service]
ExecStart={command}
WorkingDirectory={folder}
Restart=on-failure
RestartPreventExitStatus=2 3

[Install]
WantedBy=default.target
"""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PORT = re.compile(r"--port\W+(?:string\W+){0,2}(\d+)")
_MAC = sys.platform == "darwin"


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    for name, run, text in (
        ("install", _install, "start the proxy now and at every login, with these settings"),
        ("remove", _remove, "stop it, and remove all that `install` made; sessions stay"),
        ("status", _status, "whether it is installed, runs, and runs the code that is installed"),
    ):
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(run=run, parser=action)
        action.add_argument("--name", type=_name, default="default", help="which one, where several are wanted")
        if name == "install":
            action.add_argument("--port", type=int, help="the port to listen on")
            add_settings_arguments(action)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("must be 1-64 letters, digits, '_' or '-' of ASCII")
    return text


def _install(arguments: argparse.Namespace) -> int:
    port, file = settings_from(arguments).port, _file(arguments.name)
    given = {"port": port, **{name: getattr(arguments, name) for name in ("upstream", "store", "strategy", "window")}}
    given["config"] = os.path.abspath(arguments.config) if arguments.config else None
    words = [sys.executable, "-m", "proxy", "serve"]
    words += [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    file.parent.mkdir(parents=True, exist_ok=True)
    # A store's address may hold a password.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(agent(arguments.name, words) if _MAC else unit(arguments.name, words).encode())
    print(f"wrote {file}")
    if _MAC:
        subprocess.run(["launchctl", "unload", str(file)], capture_output=True, check=False)  # noqa: S603, S607
        return OK if _done(["launchctl", "load", "-w", str(file)]) else FAILED
    return OK if all(map(_done, _systemctl(file, "daemon-reload", "enable", "restart"))) else FAILED


def _remove(arguments: argparse.Namespace) -> int:
    file = _file(arguments.name)
    if not file.exists():
        print(f"{arguments.name} is not installed")
        return OK
    stopping = [["launchctl", "unload", "-w", str(file)]] if _MAC else _systemctl(file, "disable", "stop")
    failed = [words for words in stopping if not _done(words)]
    file.unlink()
    reloaded = _MAC or _done(["systemctl", "--user", "daemon-reload"])
    print(f"removed {file}")
    return OK if reloaded and not failed else FAILED


def _status(arguments: argparse.Namespace) -> int:
    file = _file(arguments.name)
    if not file.exists():
        found = sorted(path.stem.removeprefix("condenser.") for path in file.parent.glob(f"condenser.*{file.suffix}"))
        print(f"{arguments.name} is not installed; installed: {', '.join(found) or 'none'}", file=sys.stderr)
        return FAILED
    port = _PORT.search(file.read_text("utf-8"))
    url = client_url(HOST, port[1]) if port else ""
    reply = ask(url, "/readyz")
    state = json_or_none(reply.body)
    print(f"installed  {file}")
    if reply.status != 200 or not isinstance(state, dict) or "version" not in state:
        print(f"running    no: {reply.problem}")
        return FAILED
    print(f"running    {url}, version {state['version']}")
    note = note_at(url)
    if state["version"] != VERSION or (note is not None and note.started < _changed()):
        print(
            f"condenser: warning: what runs is older than the code that is installed ({VERSION}); restart it with"
            f" `condenser service install`, or log in anew",
            file=sys.stderr,
        )
    return OK


def _changed() -> float:
    return max(path.stat().st_mtime for path in Path(__file__).parents[1].rglob("*.py"))


def unit(name: str, words: Sequence[str]) -> str:
    escaped = (word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") for word in words)
    folder = os.getcwd().replace("%", "%%")
    return UNIT.format(name=name, folder=folder, command=" ".join(f'"{word}"' for word in escaped))


def agent(name: str, words: Sequence[str]) -> bytes:
    return plistlib.dumps(
        {
            "Label": f"condenser.{name}",
            "ProgramArguments": list(words),
            "WorkingDirectory": os.getcwd(),
            "RunAtLoad": True,
            "KeepAlive": True,
        }
    )


def _file(name: str) -> Path:
    if _MAC:
        return Path.home() / "Library" / "LaunchAgents" / f"condenser.{name}.plist"
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "systemd" / "user" / f"condenser.{name}.service"


def _systemctl(file: Path, *verbs: str) -> list[list[str]]:
    """Calls of `systemctl --user` with these verbs; all but `daemon-reload` take the name of the unit."""
    return [["systemctl", "--user", verb, *([] if verb == "daemon-reload" else [file.name])] for verb in verbs]


def _done(words: Sequence[str]) -> bool:
    """Runs a command of the system; prints what went wrong, and returns whether it succeeded."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
        problem = (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
    except OSError as error:
        problem = (error.strerror or "").lower()
    if problem:
        print(f"condenser: {' '.join(words)}: {problem}", file=sys.stderr)
    return not problem
