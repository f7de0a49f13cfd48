"""What tests of the proxy's parts share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from proxy.store import open_store
from proxy.store.base import SessionStore


@pytest.fixture
async def store() -> AsyncIterator[SessionStore]:
    """A store in memory."""
    opened = await open_store("memory://")
    yield opened
    await opened.close()
