"""The coding agents that `make setup` installs here where npm is: pinned, and never updated by themselves."""

import shutil
from pathlib import Path

_MODULES = Path(__file__).parent / "node_modules"


def command(name: str, script: str) -> list[str]:
    """How an agent is started: with `script` of its package, else as it is on the path; [] where it is not."""
    installed, node, own = _MODULES / script, shutil.which("node"), shutil.which(name)
    if node and installed.exists():
        return [node, str(installed)]
    return [own] if own else []
