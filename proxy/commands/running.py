"""Finds the proxies that run on this machine: `serve` notes its address in a file, for the commands that ask a proxy.

The notes of a user are in a folder that nobody else may write to. A process holds a lock on its note as long as it
lives, so the note of a dead process is ignored. Standard library only, because a health check must start quickly.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from proxy.errors import SettingsError

HOST, PORT = "127.0.0.1", 8484
_ANSWER = ".hangup"  # the ending of a file beside a note, with the answer to the last SIGHUP
_CONFIG_VARIABLE = "CONDENSER_CONFIG"
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Hosts that stand for every address of this machine, each with one that a client can connect to."""


class Note(NamedTuple):
    """What a proxy notes about itself."""

    url: str  # its address for clients on this machine
    configured: str  # the address that its settings name without the command line
    token_file: str | None  # the file with its admin token; None if there is no such file
    started: float
    admin: str | None = None  # the address of its listener for administration, if it has one
    token: str | None = None  # the admin token that it made for itself, where there is no file for it
    place: str = ""  # `configured_place` of its own
    handles: str = ""  # the token that opens handles, for `condenser mcp`; none where callers show their own credential


def client_url(host: str, port: int | str) -> str:
    """The address at which a client on this machine reaches a proxy that listens on a host."""
    return listening_url(_LOOPBACK.get(host, host), port)


def listening_url(host: str, port: int | str) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def configured_url() -> str:
    """The address that the environment and the settings file name; other settings are not checked.

    Raises `SettingsError` if the file cannot be read.
    """
    return _configured()[0]


def configured_place() -> str:
    """A digest of the store that environment, settings file and home name; "" where they name an address themselves."""
    return _configured()[1]


def _configured() -> tuple[str, str]:
    path = os.environ.get(_CONFIG_VARIABLE)
    try:
        file = tomllib.loads(Path(path).read_text("utf-8")) if path else {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not valid TOML"
        raise SettingsError(f"the settings are in {path}, which cannot be read: {why}") from None
    host = os.environ.get("CONDENSER_HOST") or file.get("host", HOST)
    port = os.environ.get("CONDENSER_PORT") or file.get("port", PORT)
    is_named = not {"CONDENSER_HOST", "CONDENSER_PORT"}.isdisjoint(os.environ) or not {"host", "port"}.isdisjoint(file)
    stated = [os.environ.get(name) for name in ("CONDENSER_STORE__URL", "CONDENSER_STORE__URL_FILE")]
    stated += [str(file.get("store")), os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")]
    place = next(each for each in stated if each and each != "None")
    return client_url(str(host), str(port)), "" if is_named else sha256(place.encode()).hexdigest()


# Notes


def find_proxy() -> Note | None:
    """The proxy of this user at the configured address, else the newest one whose settings name that address.

    Where nobody has named the address, its settings must name the same store: another home's proxy is not meant.
    """
    here, place = _configured()
    ours = (note for note in living() if here in note[:2] and (not place or note.place in ("", place)))
    return max(ours, key=lambda note: (note.url == here, note.started), default=None)


def note_at(url: str | None) -> Note | None:
    """The proxy of this user at an address, by default that which `find_proxy` finds."""
    return find_proxy() if url is None else next((each for each in living() if each.url == url.rstrip("/")), None)


def admin_url(url: str) -> str:
    """Where the administration of the proxy at `url` is: elsewhere if it runs here, and has a listener for that."""
    return next((note.admin for note in living() if note.url == url and note.admin), url)


@contextmanager
def noted(note: Note) -> Iterator[None]:
    """Notes a proxy while it runs; prints a warning if that is not possible."""
    try:
        path, file = _write(note)
    except OSError as error:
        print(
            f"condenser: warning: {_folder()} cannot hold this proxy's address ({error.strerror}),"
            f" so `status` and other commands must be given --url {note.url}",
            file=sys.stderr,
        )
        yield
        return
    with os.fdopen(file, "w"):
        yield
        path.unlink(missing_ok=True)
        path.with_suffix(_ANSWER).unlink(missing_ok=True)


def _write(note: Note) -> tuple[Path, int]:
    """Writes a note; returns its path and the descriptor that holds its lock. Raises `OSError`."""
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_owner(folder)
    for other in folder.glob("*.json"):
        if not _text(other):
            other.unlink(missing_ok=True)
            other.with_suffix(_ANSWER).unlink(missing_ok=True)
    path = folder / f"{os.getpid()}.json"
    # It gets its name only when it is locked and complete.
    written = path.with_suffix(".new")
    file = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, json.dumps(note._asdict()).encode())
    written.replace(path)
    return path, file


def living() -> Iterator[Note]:
    """All proxies of this user that run on this machine, whatever their settings."""
    return (note for _, note in _with_processes())


def process_of(url: str) -> int | None:
    """The process that runs the proxy at an address; None if none of this user's does."""
    return next((process for process, note in _with_processes() if note.url == url), None)


class Answer(NamedTuple):
    """What a proxy says of the last SIGHUP."""

    at: int  # when, in nanoseconds: two answers differ in it
    is_right: bool  # whether the settings hold that it has read
    text: str


def answer_hangup(*, is_right: bool, text: str) -> None:
    """Says what has come of a SIGHUP to this process; raises `OSError`."""
    folder = _folder()
    _check_owner(folder)
    path = folder / f"{os.getpid()}{_ANSWER}"
    written = path.with_suffix(".new")
    written.write_text(json.dumps(Answer(time.time_ns(), is_right, text)), "utf-8")
    written.replace(path)


def hangup_answer(process: int) -> Answer | None:
    """What a process has said of the last SIGHUP; None before the first."""
    try:
        return Answer(*json.loads((_folder() / f"{process}{_ANSWER}").read_text("utf-8")))
    except FileNotFoundError:
        return None


def _with_processes() -> Iterator[tuple[int, Note]]:
    folder = _folder()
    try:
        _check_owner(folder)
    except OSError:
        return  # there are no notes, or none that can be trusted
    for path in folder.glob("*.json"):
        try:
            yield int(path.stem), Note(**json.loads(_text(path) or "{}"))
        except (ValueError, TypeError):
            continue  # the process has ended, or is of another version


def _folder() -> Path:
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"condenser-{os.getuid()}"  # noqa: S108


def _check_owner(folder: Path) -> None:
    """Raises `OSError` for a folder that is not only this user's, because anyone may make one with its name."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(0, "it belongs to somebody else, or others may write to it")


def _text(path: Path) -> str:
    """The text of a note; "" if its process has ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""
    with os.fdopen(file, encoding="utf-8") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return opened.read()
    return ""
