"""`condenser service`: what it writes can be run, and what it wrote it removes. Here no systemd need answer."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.commands.running import Note, noted
from proxy.commands.service import agent, unit
from tests.proxy.command_line import run
from tests.support.ports import free_port
from tests.support.proxy import proxying
from tests.support.redis_server import await_true
from tests.support.replicas import ROOT
from tests.support.signals import BOUND

ANALYZE = shutil.which("systemd-analyze")
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of the test's own, where no service manager is found."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "config" / "systemd" / "user"


def installed(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> int:
    """Installs a service; its port."""
    port = free_port()
    code, out, err = run(capsys, "service", "install", "--name", name, "--port", str(port), *words)
    assert (code, out.startswith("wrote ")) == (1, True)
    assert err.startswith("condenser: systemctl --user daemon-reload: no such file or directory")
    return port


def test_the_command_in_a_unit_serves_and_status_finds_it(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    port = installed(capsys, "one", "--store", f"sqlite:///{tmp_path}/100%.db")
    file = home / "condenser.one.service"
    assert file.stat().st_mode & 0o777 == 0o600
    line = next(each for each in file.read_text().splitlines() if each.startswith("ExecStart="))
    words = [word.replace("%%", "%") for word in shlex.split(line.removeprefix("ExecStart="))]
    assert run(capsys, "service", "status", "--name", "one")[0] == 1
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            await_true(lambda: run(capsys, "service", "status", "--name", "one")[0] == 0, "the service answers")
            _, out, err = run(capsys, "service", "status", "--name", "one")
            assert (f"http://127.0.0.1:{port}, version" in out, err) == (True, "")
            assert (tmp_path / "100%.db").exists()
        finally:
            process.terminate()
            process.wait(2 * BOUND)


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze here")
def test_systemd_takes_the_unit(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(capsys, "one")
    assert ANALYZE is not None
    words = [ANALYZE, "verify", "--user", str(home / "condenser.one.service")]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(home)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip("systemd-analyze does not work here")
    assert (done.returncode, "condenser.one.service" in done.stderr) == (0, False), done.stderr


def test_status_warns_of_a_proxy_that_is_older_than_its_code(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with proxying("http://127.0.0.1:9") as proxy:
        home.mkdir(parents=True)
        (home / "condenser.one.service").write_text(unit("one", ["serve", "--port", proxy.url.rpartition(":")[2]]))
        with noted(Note(proxy.url, proxy.url, None, 1.0)):
            code, _, err = run(capsys, "service", "status", "--name", "one")
    assert code == 0
    assert err.startswith("condenser: warning: what runs is older than the code that is installed")


def test_remove_leaves_nothing_and_other_names_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed(capsys, "one")
    installed(capsys, "two")
    run(capsys, "service", "remove", "--name", "one")
    assert os.listdir(home) == ["condenser.two.service"]
    code, _, err = run(capsys, "service", "status", "--name", "one")
    assert (code, err) == (1, "one is not installed; installed: two\n")
    assert run(capsys, "service", "remove", "--name", "one") == (0, "one is not installed\n", "")


def test_settings_that_are_wrong_install_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "service", "install", "--strategy", "no-such")[0] == 2
    assert not home.exists()


def test_the_agent_of_launchd_has_the_same_words() -> None:
    words = ["/usr/bin/python", "-m", "proxy", "serve", "--port", "8485"]
    assert plistlib.loads(agent("two", words))["ProgramArguments"] == words


def test_a_service_manager_that_fails_without_a_word_is_a_failure(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manager = tmp_path / "systemctl"
    manager.write_text("#!/bin/sh\nexit 3\n")
    manager.chmod(0o700)
    code, _, err = run(capsys, "service", "install", "--name", "mute", "--port", str(free_port()))
    assert (code, err.splitlines()[0]) == (1, "condenser: systemctl --user daemon-reload: exit status 3")
