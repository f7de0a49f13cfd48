"""The units of systemd and the agent of launchd: they run a command that there is."""

import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.cli import parse
from proxy.settings import load_settings
from tests.deploy import repository

SETTINGS = ".config/condenser/condenser.toml"


def test_the_unit_of_systemd_serves_with_the_settings_file() -> None:
    unit = (repository.ROOT / "deploy" / "condenser.service").read_text()
    (line,) = [each for each in unit.splitlines() if each.startswith("ExecStart=")]
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == "%h/.local/bin/condenser"
    assert parse(words).config == f"%h/{SETTINGS}"


def test_the_unit_of_a_system_serves_with_few_rights_and_time_to_drain() -> None:
    unit = unit_path().read_text()
    lines = dict(each.split("=", 1) for each in unit.splitlines() if re.match(r"[A-Z]\w+=", each))
    program, *words = shlex.split(lines["ExecStart"])
    assert (program, parse(words).config) == ("/opt/condenser/bin/condenser", "/etc/condenser/condenser.toml")
    drain = load_settings().drain
    assert int(lines["TimeoutStopSec"]) > drain.delay + drain.timeout
    store = lines["Environment"].removeprefix("CONDENSER_STORE__URL=")
    assert store.startswith(f"sqlite:////var/lib/{lines['StateDirectory']}/")
    assert lines["EnvironmentFile"] == "-/etc/condenser/condenser.env"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here, so nobody looks whether systemd reads the unit so")
    options = ["--offline=true", "--threshold=20"]  # tenths: 9.6 is a unit without any of this
    subprocess.run(["systemd-analyze", "security", *options, unit_path()], check=True, stdout=subprocess.DEVNULL)


def unit_path() -> Path:
    return repository.ROOT / "deploy" / "condenser.system.service"


def test_the_agent_of_launchd_serves_with_the_settings_file() -> None:
    agent = plistlib.loads((repository.ROOT / "deploy" / "com.condenser.plist").read_bytes())
    *shell, script = agent["ProgramArguments"]
    assert shell == ["/bin/sh", "-c"]
    assert shlex.split(script)[:2] == ["exec", "$HOME/.local/bin/condenser"]
    assert parse(shlex.split(script)[2:]).config == f"$HOME/{SETTINGS}"
