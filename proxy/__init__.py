"""The HTTP shell around the strategies: its version, and its data files."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parent
LOGGER = "condenser"


def _version() -> str:
    try:
        return version("condenser-proxy")
    except PackageNotFoundError:
        return "0+unknown"


VERSION = _version()


def config_directory() -> Path:
    """The directory of `models.toml` and `tool_output.toml`: in the package, or in a checkout `config/`."""
    packed = _PACKAGE / "_config"
    return packed if packed.is_dir() else _PACKAGE.parent / "config"


def tool_output_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """How a tool's output in a user message begins, and how it ends."""
    data = tomllib.loads((config_directory() / "tool_output.toml").read_text("utf-8"))
    begins, ends = ("|".join(f"(?:{pattern})" for pattern in data[name]) for name in ("begins", "ends"))
    return re.compile(begins), re.compile(rf"(?:{ends})\s*\Z")
