"""Data files: from the repository's `config/` where there is one, else from the installed package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

_PACKAGE = Path(__file__).parent


def config_directory() -> Path:
    """Where `models.toml` and `tool_output.toml` are."""
    packed = _PACKAGE / "_config"
    return packed if packed.is_dir() else _PACKAGE.parent / "config"


def tool_output_patterns() -> Sequence[re.Pattern[str]]:
    """The patterns of user messages that are tool results."""
    data = tomllib.loads((config_directory() / "tool_output.toml").read_text("utf-8"))
    return [re.compile(pattern) for pattern in data["patterns"]]
