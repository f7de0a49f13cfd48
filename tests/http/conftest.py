"""A proxy before a scripted upstream, and a Redis server, for a test over HTTP."""

from collections.abc import Iterator

import pytest

from proxy.callers import operators
from tests.support.redis_server import RedisServer
from tests.support.stage import Stage, proxy_with_upstream


@pytest.fixture(autouse=True)
def a_wrong_token_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long it waits is held where `Operators` is tested."""
    monkeypatch.setattr(operators, "_LATE", 0.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream() as built:
        yield built


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
