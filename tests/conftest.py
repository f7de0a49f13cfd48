"""Fixtures of the end-to-end tests: a scripted upstream and the real proxy before it, on real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.proxy import Proxy, proxying
from tests.support.upstream import ScriptedUpstream

# A machine may be busy: no property has to hold within a time.
settings.register_profile("tests", deadline=None, max_examples=60)
settings.load_profile("tests")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm fetches its price list at import


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def proxy(upstream: ScriptedUpstream) -> Iterator[Proxy]:
    with proxying(upstream.url) as running:
        yield running


@pytest.fixture
def proxy_url(proxy: Proxy) -> str:
    """What takes the place of the vendor's address; add `/v1` for a client's `base_url`."""
    return proxy.url
