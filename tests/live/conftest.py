"""Servers that several tests share: each takes a second to start."""

from collections.abc import Iterator

import pytest

from tests.live.llama import llama


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A server with one slot of 1,024 tokens."""
    with llama(n_ctx=1_024, n_parallel=1) as url:
        yield url
