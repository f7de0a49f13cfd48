"""Measurements that do not depend on what else the machine has."""

from pathlib import Path

import pytest


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is found by its name, so that no peer is measured which happens to be installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
