"""Commands find the proxy that runs on this machine, and believe no note of another process or user."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from proxy.commands import proxy_client
from proxy.commands.running import Note, answer_hangup, configured_url, find_proxy, noted
from tests.proxy.command_line import run
from tests.support.processes import end
from tests.support.redis_server import await_true
from tests.support.replicas import ROOT, SERVE
from tests.support.signals import BOUND
from tests.support.stage import MODEL, chat
from tests.support.upstream import ScriptedUpstream

pytestmark = pytest.mark.usefixtures("elsewhere")

DEFAULT = "http://127.0.0.1:8484"
OTHER = Note("http://127.0.0.1:9", DEFAULT, None, 1.0)


@contextmanager
def serving(store: Path, *words: str) -> Iterator[str]:
    """The address of a proxy on a port that only its command line names."""
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--store", f"sqlite:///{store}/s.db", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1].removesuffix("/v1")
        finally:
            end(process)


@pytest.mark.parametrize("alone", [True, False])
def test_a_link_that_signs_in_is_printed_where_only_the_operator_reads_it(tmp_path: Path, alone: bool) -> None:
    words = ["--single-user"] if alone else []
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--store", f"sqlite:///{tmp_path}/s.db", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if line.startswith("  dashboard "))
        finally:
            end(process)
    assert ("?code=" in line, "`condenser dashboard` prints a link" in line) == (alone, not alone)


def note_folder(tmp_path: Path) -> Path:
    return tmp_path / f"condenser-{os.getuid()}"


def test_a_token_that_a_proxy_made_for_itself_is_used_by_the_commands_of_its_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, "--store", "memory://") as url:
        await_true(lambda: run(capsys, "healthcheck") == (0, "", ""), "the proxy is found", bound=4 * BOUND, poll=0.2)
        code, out, err = run(capsys, "sessions", "list")
        assert (code, err, out.split()[0]) == (0, "", "SESSION")
        address = run(capsys, "dashboard", "--no-open")[1].split()[0]
        assert address.startswith(f"{url}/_condenser/?code=")
        assert httpx.get(address).status_code == 303
        code, _, err = run(capsys, "serve", "--store", "memory://", "--port", url.rpartition(":")[2])
        assert (code, "is taken by a Condenser; choose" in err) == (3, True)
        monkeypatch.setenv("CONDENSER_ADMIN__TOKEN", "that of another proxy")
        said = f"{url}/_condenser/\nsign in with admin.token of the proxy's settings\n"
        assert run(capsys, "dashboard", "--no-open")[1] == said


def test_of_several_proxies_the_configured_or_newest_is_found() -> None:
    newer, configured = OTHER._replace(started=3.0), OTHER._replace(url=DEFAULT, started=2.0)
    with noted(configured), another_process(newer):
        assert find_proxy() == configured
    newer = OTHER._replace(url="http://127.0.0.1:10", started=2.0)
    with another_process(newer), noted(OTHER):
        assert find_proxy() == newer


def test_a_proxy_of_another_home_is_reached_only_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as url:
        await_true(lambda: run(capsys, "healthcheck") == (0, "", ""), "the proxy is found", bound=4 * BOUND, poll=0.2)
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
        code, _, err = run(capsys, "reload")
        assert (code, url in err) == (1, False)
        assert run(capsys, "healthcheck", "--url", url) == (0, "", "")
        monkeypatch.setenv("CONDENSER_PORT", url.rpartition(":")[2])
        assert run(capsys, "healthcheck") == (0, "", "")
    with noted(Note(DEFAULT, DEFAULT, None, 1.0, place="of another")):
        monkeypatch.delenv("CONDENSER_PORT")
        code, _, err = run(capsys, "status")
        assert (code, f"--url {DEFAULT} names it" in err) == (2, True)


def test_without_a_proxy_sessions_are_read_from_the_store_itself(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    none = run(capsys, "sessions", "list", "--store", store)
    assert none == (1, "", f"condenser: there is no store at {store}\n")
    with serving(tmp_path, "--upstream", upstream.base_url) as url:
        headers = {"X-Condenser-Session": "s", "Authorization": "Bearer k"}
        asked = {"model": MODEL, "messages": chat(2)}
        assert httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers).status_code == 200
        online = run(capsys, "sessions", "show", "s", "--json", "--url", url)[1]
    code, out, err = run(capsys, "sessions", "show", "s", "--json", "--store", store)
    assert (code, err) == (0, f"no proxy is asked: read from {store}\n")
    assert json.loads(out) == json.loads(online)
    code, _, err = command(capsys, "sessions", "show", "none", "--store", store)
    assert (code, "there is no session none" in err) == (1, True)
    monkeypatch.setenv("CONDENSER_STORE__URL", store)
    assert run(capsys, "sessions", "list")[0] == 0
    code, _, err = run(capsys, "sessions", "delete", "s", "--store", store)
    assert (code, "a proxy changes it" in err) == (1, True)


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """`run`, as a process that has said nothing yet."""
    proxy_client._say_once.cache_clear()
    return run(capsys, *words)


@contextmanager
def typed(answer: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard input is a terminal, at which a person answers."""
    person, terminal = pty.openpty()
    with os.fdopen(person, "w") as typing, os.fdopen(terminal) as read, monkeypatch.context() as patched:
        typing.write(f"{answer}\n")
        typing.flush()
        patched.setattr(sys, "stdin", read)
        yield


def test_commands_find_the_proxies_that_run_and_ask_before_they_delete(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "of another program"))
    words = ("--upstream", upstream.base_url)
    with serving(tmp_path / "first", *words) as first:
        await_true(lambda: run(capsys, "healthcheck") == (0, "", ""), "the proxy is found", bound=4 * BOUND, poll=0.2)
        assert f" at {first} is ready;" in run(capsys, "status")[1]
        code, out, err = run(capsys, "sessions", "list")  # with the token that is found beside it
        assert (code, err) == (0, "")
        assert out.startswith("SESSION")
        with serving(tmp_path / "second", *words) as second:
            headers = {"X-Condenser-Session": "s", "Authorization": "Bearer sk-first"}
            asked = {"model": MODEL, "messages": chat(2)}
            assert httpx.post(f"{second}/v1/chat/completions", json=asked, headers=headers).status_code == 200
            assert_the_newer_is_asked(first, second, capsys, monkeypatch)
    refused = f"condenser: no proxy answers at {DEFAULT}: connection refused; --url names another address\n"
    assert run(capsys, "healthcheck") == (1, "", refused)


def assert_the_newer_is_asked(
    first: str, second: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"proxy {second} (one of 2 running here; --url picks another)\n"
    code, out, err = command(capsys, "sessions", "list")
    assert (code, len(out.splitlines()), err) == (0, 2, said)
    assert command(capsys, "sessions", "list", "--url", first)[2] == ""

    terminal = "standard input is not a terminal"
    refused = f"{said}condenser: to delete session s at {second}, give --yes: {terminal}\n"
    assert command(capsys, "sessions", "delete", "s") == (2, "", refused)
    refused = f"{said}condenser: to forget all cards of s at {second}, give --yes: {terminal}\n"
    assert command(capsys, "memory", "forget", "s", "--all") == (2, "", refused)
    assert command(capsys, "memory", "forget", "s", "--all", "--yes") == (0, "forgot 0 cards\n", said)

    question = f"{said}Delete session s at {second}? [y/N] "
    with typed("n", monkeypatch):
        assert command(capsys, "sessions", "delete", "s") == (1, "", f"{question}condenser: nothing was deleted\n")
    with typed("y", monkeypatch):
        assert command(capsys, "sessions", "delete", "s") == (0, "deleted 1 session\n", question)


@contextmanager
def another_process(note: Note) -> Iterator[int]:
    """The id of a process that has written a note and lives until it is killed."""
    code = f"from proxy.commands.running import *\nwith noted(Note{tuple(note)}): print(flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        try:
            yield living.pid
        finally:
            living.kill()


def test_a_proxy_that_was_started_with_other_settings_is_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    with noted(OTHER):
        assert find_proxy() == OTHER
        monkeypatch.setenv("CONDENSER_PORT", "9000")
        assert find_proxy() is None
        monkeypatch.setenv("CONDENSER_PORT", "9")
        assert find_proxy() == OTHER


def test_the_note_of_a_killed_process_is_not_believed(tmp_path: Path) -> None:
    with another_process(OTHER) as killed:
        assert find_proxy() == OTHER
    left = note_folder(tmp_path) / f"{killed}.json"
    assert left.exists()
    assert find_proxy() is None
    with noted(OTHER):
        assert not left.exists()
    assert list(note_folder(tmp_path).iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not JSON", json.dumps({"url": "http://x"})])
def test_a_note_that_cannot_be_read_is_passed_over(text: str, tmp_path: Path) -> None:
    with noted(OTHER):
        (note,) = note_folder(tmp_path).iterdir()
        note.write_text(text)
        assert find_proxy() is None


def others_may_write(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    (folder.parent / "theirs").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "theirs")


def a_file(folder: Path) -> None:
    folder.touch()


@pytest.mark.parametrize("made", [others_may_write, a_link, a_file])
def test_a_shared_folder_holds_no_notes(made: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = note_folder(tmp_path)
    assert callable(made)
    made(folder)
    with noted(OTHER):
        assert "must be given --url http://127.0.0.1:9" in capsys.readouterr().err
        assert find_proxy() is None


def test_the_settings_file_names_the_address_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text('host = "::"\nport = 9000\n[unknown]\n')
    monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "c.toml"))
    assert configured_url() == "http://[::1]:9000"
    monkeypatch.setenv("CONDENSER_PORT", "9")
    assert configured_url() == "http://[::1]:9"


@pytest.mark.parametrize("text", ["no toml", None])
def test_a_settings_file_that_cannot_be_read_is_named(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "c.toml"))
    code, out, err = run(capsys, "healthcheck")
    assert (code, out) == (2, "")
    assert str(tmp_path / "c.toml") in err


def test_an_answer_is_not_written_into_a_folder_of_others(tmp_path: Path) -> None:
    folder, target = note_folder(tmp_path), tmp_path / "precious"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    target.write_text("kept")
    (folder / f"{os.getpid()}.new").symlink_to(target)
    with pytest.raises(PermissionError):
        answer_hangup(is_right=True, text="read again")
    assert target.read_text() == "kept"
