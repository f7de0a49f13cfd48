"""`make`: its targets, what it tells a machine that cannot run it, and what its locks hold."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.deploy import repository

ROOT = repository.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = [
    "help",
    "setup",
    "demo",
    "serve",
    "test",
    "check-lint",
    "format",
    "bench",
    "eval",
    "live",
    "pictures",
    "docs",
    "torture",
    "audit",
    "release",
    "lock",
    "clean",
]
LOCKS = ["base", "dev", "build", "lock", "redis", "audit", "kits", "docs", "live", "vllm", "release"]
PIN = re.compile(r"^([a-z0-9._-]+)(?:\[[a-z0-9,-]+\])?==(\S+)", re.MULTILINE)
# An address of a package index, or a setting that would hold one, whatever the tool calls it.
INDEX_ADDRESS = re.compile(
    r"(?i)(index-url|find-links|trusted-host|registry|resolved|proxy_url)[\"'= :]{1,6}[^\s\"']*(://|\.(org|com|io|dev|net)\b)"
)


def make(*arguments: str, folder: Path = ROOT, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={**environment, "PATH": path or environment["PATH"]},
        text=True,
        capture_output=True,
        check=False,
    )


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / "requirements" / f"{name}.txt").read_text()))


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """What `make` itself reads of a fresh clone."""
    shutil.copy2(ROOT / "Makefile", tmp_path)
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    for folder in ("deploy", "requirements"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def interpreter(folder: Path, *, version: str = "3, 11", without: str = "") -> Path:
    """The Python at hand under a script that makes it pass for another one."""
    folder.mkdir(exist_ok=True)
    script = folder / "odd-python"
    disguise = f"import sys; sys.version_info = ({version}, 0, 'final', 0)"
    hide = f"import importlib.util as u; f = u.find_spec; u.find_spec = lambda n: n != '{without}' and f(n)"
    run = "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    script.write_text(f'#!/bin/sh\nexec python3 -c "{disguise}; {hide}; {run}" "$@"\n')
    script.chmod(0o755)
    return script


def test_help_lists_every_target_and_is_the_default() -> None:
    said = make("help").stdout
    assert make().stdout == said
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(TARGETS) <= set(phony.split())
    assert [target for target in TARGETS if not re.search(rf"^  make {target} +\S", said, re.MULTILINE)] == []


@pytest.mark.parametrize("target", ["setup", "demo", "serve", "test", "torture", "bench"])
def test_a_fresh_clone_makes_its_environment_first(fresh: Path, target: str) -> None:
    plan = make("-n", target, folder=fresh)
    assert plan.returncode == 0, plan.stderr
    assert (
        plan.stdout.index("-m venv .venv") < plan.stdout.index("--require-hashes") < plan.stdout.index("fetch_ranks.py")
    )


def test_another_python_gets_an_environment_of_its_own(fresh: Path) -> None:
    stamp(fresh, "venv", "dev")
    plan = make("-n", "test", "PYTHON=python3", "VENV=.venv-3.13", folder=fresh).stdout
    assert "python3 -m venv .venv-3.13" in plan
    assert ".venv-3.13/bin/python -m pytest" in plan
    assert not re.search(r"\.venv\b(?!-3\.13)", plan)


def test_running_the_program_takes_arguments_and_installs_no_developers_tools(fresh: Path) -> None:
    for target in ("demo", "serve"):
        plan = make("-n", target, "UPSTREAM=upstream.test", "ARGS=--port 9", folder=fresh).stdout
        assert "requirements/dev.txt" not in plan
    assert plan.rstrip().endswith(".venv/bin/condenser serve --upstream upstream.test --port 9")


def test_a_whole_check_ends_with_pytest(fresh: Path) -> None:
    steps = [line for line in make("-n", "test", folder=fresh).stdout.splitlines() if "-m pip" not in line]
    wanted = [
        "deploy/ensure_redis.sh",
        "ruff check",
        "ruff format --check",
        "mypy --strict proxy strategies tests",
        "pytest",
    ]
    places = [max(place for place, line in enumerate(steps) if step in line) for step in wanted]
    assert places == sorted(places)
    assert places[-1] == len(steps) - 1


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ({"version": "3, 10"}, "needs Python 3.11 or later; this is 3.10"),
        ({"without": "venv"}, "apt-get install python3-venv"),
        ({"without": "ensurepip"}, "apt-get install python3-venv"),
        (None, "no no-such-python here"),
    ],
)
def test_a_python_that_will_not_do_is_named_with_the_way_out(
    python: dict[str, str] | None, told: str, fresh: Path, tmp_path: Path
) -> None:
    named = "no-such-python" if python is None else interpreter(tmp_path / "bin", **python)
    said = make("setup", f"PYTHON={named}", folder=fresh)
    assert said.returncode != 0
    assert told in said.stderr
    assert "PYTHON=" in said.stderr or "python3-venv" in told
    assert not (fresh / ".venv").exists()


def test_continuous_integration_runs_the_whole_check_from_the_repository() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert lines[:2] == ["#!/usr/bin/env bash", "set -euo pipefail"]
    assert lines[-1].startswith("exec make test")
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    ("says", "exits", "status"),
    [
        ("No known vulnerabilities found", 0, 0),
        ("Found 1 known vulnerability in 1 package", 1, 1),
        ("ERROR: uv: Dependency not found and could not be audited", 1, 2),
        ("ServiceError: Max retries exceeded", 1, 2),
    ],
)
def test_an_audit_that_could_not_ask_is_no_good_news(says: str, exits: int, status: int, tmp_path: Path) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\necho '{says}'\nexit {exits}\n")
    tool.chmod(0o755)
    audit = subprocess.run(
        ["sh", "deploy/audit.sh", tool, "a.txt"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert audit.returncode == status
    assert says in audit.stdout + audit.stderr
    assert ("could not be asked" in audit.stderr) is (status == 2)


def test_every_locked_package_is_held_by_hashes_and_alike_in_all_locks() -> None:
    for name in LOCKS:
        text = (ROOT / "requirements" / f"{name}.txt").read_text()
        requirements = [block for block in re.split(r"\n(?=\S)", text) if not block.startswith("#")]
        assert requirements
        assert all(PIN.match(block) and "--hash=sha256:" in block for block in requirements)
    build, dev = pins("build"), pins("dev")
    assert pins("base").items() <= dev.items()
    shared = build.keys() & dev.keys()
    assert {name: build[name] for name in shared} == {name: dev[name] for name in shared}


@pytest.mark.parametrize(("extra", "lock"), [(None, "base"), ("dev", "dev")])
def test_every_declared_dependency_is_locked(extra: str | None, lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"][extra] if extra else project["dependencies"]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line)[0].lower()) for line in declared}
    names -= {project["name"]}
    assert names <= set(pins(lock))


def test_no_file_names_a_package_index() -> None:
    kinds = {".txt", ".in", ".toml", ".json", ".yml", ".yaml", ".cfg", ".ini", ".sh", ".lock", ""}
    found = [
        (str(path), line)
        for path in repository.files()
        if path.suffix in kinds and (ROOT / path).stat().st_size < 2_000_000
        for line in (ROOT / path).read_text(errors="replace").splitlines()
        if INDEX_ADDRESS.search(line)
    ]
    assert not found


def test_no_lock_holds_an_address_at_all() -> None:
    locks = [*(ROOT / "requirements").iterdir(), *ROOT.glob("tests/**/package-lock.json")]
    assert not [lock for lock in locks if "node_modules" not in lock.parts and names_an_address(lock)]


def names_an_address(lock: Path) -> bool:
    """An npm lock may say who is to be paid for a package; nothing else in a lock has an address."""
    text = lock.read_text()
    return bool(re.search(r"://", re.sub(r'"(url|funding)": "[^"]*"', "", text)))


@pytest.mark.parametrize("there", ["dev", "base"])
def test_only_a_target_that_needs_more_installs_again(fresh: Path, there: str) -> None:
    stamp(fresh, "venv", there)
    for target in ("serve", "demo"):
        assert "requirements/" not in make("-n", target, folder=fresh).stdout
    assert ("requirements/dev.txt" in make("-n", "test", folder=fresh).stdout) is (there == "base")


def stamp(folder: Path, *names: str) -> None:
    """Marks as made what `make` would make."""
    (folder / ".venv").mkdir()
    for name in names:
        (folder / ".venv" / f".stamp-{name}").touch()


@pytest.mark.parametrize("fails", [False, True])
def test_an_installation_names_each_package_and_fails_where_pip_does(fresh: Path, fails: bool) -> None:
    stamp(fresh, "venv")
    python = fresh / ".venv" / "bin" / "python"
    python.parent.mkdir()
    end = "echo 'ERROR: it broke' >&2; echo '  here' >&2; exit 1" if fails else "exit 0"
    python.write_text(f"#!/bin/sh\necho 'Collecting one==1 (from x)'\necho 'WARNING: noise' >&2\n{end}\n")
    python.chmod(0o755)
    said = make(".venv/.stamp-base", folder=fresh)
    assert (said.returncode != 0, (fresh / ".venv" / ".stamp-base").exists()) == (fails, not fails)
    assert re.fullmatch(
        r"installing the \d+ packages of requirements/base\.txt\n    1 one==1\n.*", said.stdout, re.DOTALL
    )
    assert "noise" not in said.stdout + said.stderr
    assert said.stderr.startswith("ERROR: it broke\n  here\n") is fails
