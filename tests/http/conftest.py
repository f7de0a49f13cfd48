"""A proxy before a scripted upstream, and a Redis server, for a test over HTTP."""

from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer
from tests.support.stage import Stage, proxy_with_upstream


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream() as built:
        yield built


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server
