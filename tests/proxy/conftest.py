"""What tests of the proxy's parts share."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.store import open_store
from proxy.store.base import Store
from tests.proxy.remembered import Sessions, made


@pytest.fixture
async def store() -> AsyncIterator[Store]:
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


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the file of settings that counts."""

    def write_config(text: str) -> None:
        (tmp_path / "condenser.toml").write_text(text, "utf-8")
        monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "condenser.toml"))

    return write_config


@pytest.fixture
def elsewhere(no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is set, and what is kept is kept in a folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CONDENSER_CONFIG", "")


@pytest.fixture
def sessions(store: Store) -> Sessions:
    """Sessions in that store."""
    return made(store)
