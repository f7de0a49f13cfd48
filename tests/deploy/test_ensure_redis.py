"""deploy/ensure_redis.sh: what happens on a machine with and without redis-server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import repository

SCRIPT = repository.ROOT / "deploy" / "ensure_redis.sh"
TOOLS = ("cat", "chmod", "env", "id", "mktemp", "rm", "sh")
INSTALLERS = {"apt-get": "install -y", "apk": "add", "dnf": "install"}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with the plain tools, and neither Redis nor a package manager; `sudo` runs what it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    put(folder, "sudo", 'shift; exec "$@"')
    return folder


def put(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def ensure(machine: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine), **({"CI": "true"} if ci else {})}
    return subprocess.run(
        [shutil.which("sh") or "sh", str(SCRIPT)],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("ci", [True, False])
def test_a_redis_that_is_there_is_left_alone(machine: Path, ci: bool) -> None:
    put(machine, "redis-server", "exit 1")
    put(machine, "apt-get", "exit 1")
    done = ensure(machine, ci=ci)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_developer_is_told_what_is_skipped_and_how_to_get_it(machine: Path) -> None:
    put(machine, "apt-get", "exit 1")
    done = ensure(machine, ci=False)
    assert done.returncode == 0
    assert "SKIPPED" in done.stderr
    assert "apt-get install redis-server" in done.stderr


@pytest.mark.parametrize("manager", sorted(INSTALLERS))
def test_continuous_integration_installs_it_with_the_systems_package_manager(machine: Path, manager: str) -> None:
    server = machine / "redis-server"
    put(
        machine,
        manager,
        f'echo noise; case "$*" in "{INSTALLERS[manager]}"*) : >{server}; chmod +x {server};; esac',
    )
    done = ensure(machine, ci=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.access(server, os.X_OK)


def test_continuous_integration_fails_with_the_reason_when_it_cannot_install(machine: Path) -> None:
    put(machine, "apt-get", 'echo "no such package"; exit 100')
    done = ensure(machine, ci=True)
    assert done.returncode != 0
    assert "no such package" in done.stderr
    assert "could not install redis-server" in done.stderr


def test_continuous_integration_fails_where_no_package_manager_is_known(machine: Path) -> None:
    done = ensure(machine, ci=True)
    assert done.returncode != 0
    assert "no apt-get, apk or dnf" in done.stderr
