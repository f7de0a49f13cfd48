"""Data files: finds them in the installed package, or in the repository's `config/` when run from a checkout."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parent


def config_directory() -> Path:
    """The directory of `models.toml` and `tool_output.toml`."""
    packed = _PACKAGE / "_config"
    return packed if packed.is_dir() else _PACKAGE.parent / "config"


def tool_output_patterns() -> Sequence[re.Pattern[str]]:
    """The patterns that recognise a tool's output in a user message."""
    data = tomllib.loads((config_directory() / "tool_output.toml").read_text("utf-8"))
    return [re.compile(pattern) for pattern in data["patterns"]]
