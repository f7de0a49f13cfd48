"""What tests of the proxy's parts share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.store import open_store
from proxy.store.base import SessionStore


@pytest.fixture
async def store() -> AsyncIterator[SessionStore]:
    """A store in memory."""
    opened = await open_store("memory://")
    yield opened
    await opened.close()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment sets anything."""
    for name in [each for each in os.environ if each.startswith("CONDENSER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def store_file(no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place for a store, which commands find in the environment, and nothing else there."""
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.setenv("CONDENSER_STORE__URL", f"sqlite:///{tmp_path}/s.db")
    return tmp_path / "s.db"
