"""Store URLs: what they mean, and what of them errors and logs may show."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.quoting import redacted
from proxy.store import open_store


async def test_four_slashes_are_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("here.db", f"{tmp_path}/there.db"):
        await (await open_store(f"sqlite:///{path}")).close()
        assert (tmp_path / path).exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://here.db", "memory://x"])
async def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=url):
        await open_store(url)


@pytest.mark.parametrize("url", ["postgres://u:hush@h/db", "sessions.db", "", "user:hush@host"])
async def test_an_unknown_scheme_is_refused_with_the_known_ones_and_without_credentials(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite://, memory://, redis://, rediss://") as raised:
        await open_store(url)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:hush@host", "redis://***@host"),
        ("rediss://user:hush@host:1/2", "rediss://***@host:1/2"),
        ("redis://user:hu/sh@host", "redis://***@host"),
        ("redis://user:hu@sh?#@host/0", "redis://***@host/0"),
        ("redis+cluster://:hush@a:1,b:2", "redis+cluster://***@a:1,b:2"),
        ("redis+sentinel://u:hush@a:1,b:2/main/3?x=y", "redis+sentinel://***@a:1,b:2/main/3?***"),
        ("redis://host/0?password=hush", "redis://host/0?***"),
        ("redis://host?password=hu@sh", "redis://***@sh"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("memory://", "memory://"),
        ("user:hush@host", "***"),
    ],
)
def test_a_redacted_url_shows_the_place_and_no_credentials(url: str, shown: str) -> None:
    assert redacted(url) == shown


WRONG = """
    redis://user:hu/sh@host  redis://:hush@host:port  redis://:hush@host/zero  redis://[:hush@host
    redis://:hush@host/0?socket_timeout=60  redis://:hush@host/0?db=hush  redis://host/0?ssl_ca_certs=x
    rediss://:hush@host/0?ssl_nonsense=hush  redis+cluster://:hush@host:port  redis+cluster://:hush@
    redis+cluster://:hush@host,,other  redis+cluster://:hush@host/1  redis+cluster://user:hu/sh@host
    redis+cluster://:hush@host?sentinel_password=hush  redis+sentinel://:hush@host:1
    redis+sentinel://:hush@host:1/main/zero  redis+sentinel://:hush@host:1/main?password=hush
    redis+sentinel://:hush@host:1/main?sentinel_password=hush&sentinel_password=hush
"""


@pytest.mark.parametrize("url", WRONG.split())
async def test_a_wrong_redis_url_is_refused_without_credentials(url: str) -> None:
    with pytest.raises(ValueError, match="redis") as raised:
        await open_store(url)
    assert "hush" not in str(raised.value)
    assert "hu/sh" not in str(raised.value)


def test_the_redis_client_is_imported_only_for_redis() -> None:
    code = (
        "import asyncio, sys, proxy.store\n"
        "async def main(): await (await proxy.store.open_store('memory://')).close()\n"
        "asyncio.run(main())\n"
        "sys.exit('redis' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
