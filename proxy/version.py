"""The program's version, from the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _version() -> str:
    try:
        return version("condenser-proxy")
    except PackageNotFoundError:
        return "0+unknown"


VERSION = _version()
LOGGER = "condenser"
