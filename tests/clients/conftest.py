"""What all tests with clients share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import certifi
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.cases import KEY, OURS
from tests.clients.guides import KEYS, Guides, guides_upstream
from tests.support.proxy import Proxy, running_proxy

_END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="package", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients read all authorities each time one is made, which takes longer than a request: here one is enough."""
    file = tmp_path_factory.mktemp("tls") / "authority.pem"
    file.write_text(Path(certifi.where()).read_text("utf-8").partition(_END)[0] + _END)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture
def client(proxy: Proxy) -> Iterator[OpenAI]:
    with OpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=OURS) as client:
        yield client


@pytest.fixture
async def async_client(proxy: Proxy) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0, default_headers=OURS) as client:
        yield client


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guides]:
    """Runs the page of a client, by its name."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with guides_upstream() as upstream, running_proxy(upstream.url) as proxy:
        yield Guides(proxy, upstream, tmp_path)
