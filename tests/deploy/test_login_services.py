"""The unit of systemd and the agent of launchd: they run a command that there is."""

import plistlib
import shlex

from proxy.cli import parse
from tests.deploy import repository

SETTINGS = ".config/condenser/condenser.toml"


def test_the_unit_of_systemd_serves_with_the_settings_file() -> None:
    unit = (repository.ROOT / "deploy" / "condenser.service").read_text()
    (line,) = [each for each in unit.splitlines() if each.startswith("ExecStart=")]
    program, *words = shlex.split(line.removeprefix("ExecStart="))
    assert program == "%h/.local/bin/condenser"
    assert parse(words).config == f"%h/{SETTINGS}"


def test_the_agent_of_launchd_serves_with_the_settings_file() -> None:
    agent = plistlib.loads((repository.ROOT / "deploy" / "com.condenser.plist").read_bytes())
    *shell, script = agent["ProgramArguments"]
    assert shell == ["/bin/sh", "-c"]
    assert shlex.split(script)[:2] == ["exec", "$HOME/.local/bin/condenser"]
    assert parse(shlex.split(script)[2:]).config == f"$HOME/{SETTINGS}"
