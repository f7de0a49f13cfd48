"""`serve` does not lend the operator's key to whoever reaches the port."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.cli import main
from proxy.commands.serve import gives_the_key_away
from proxy.settings import Settings

WITH_KEY = {"base_url": "http://127.0.0.1:1/v1", "api_key": "sk-operator"}


def settings(**given: Any) -> Settings:
    return Settings(**{"store": {"url": "memory://"}, "upstream": WITH_KEY, **given})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "proxy.example"])
def test_an_operators_key_beyond_loopback_is_refused(host: str) -> None:
    assert gives_the_key_away(settings(host=host))


WAYS_OUT = [
    {"host": "127.0.0.1"},
    {"host": "::1"},
    {"host": "localhost"},
    {"host": "0.0.0.0", "upstream": {"base_url": "http://127.0.0.1:1/v1"}},
    {"host": "0.0.0.0", "tenant": {"from": "header:x-user"}},
    {"host": "0.0.0.0", "open_to_all": True},
]


@pytest.mark.parametrize("given", WAYS_OUT)
def test_each_way_out_is_one(given: dict[str, Any]) -> None:
    assert not gives_the_key_away(settings(**given))


def test_the_refusal_names_the_ways_out_and_not_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-operator")
    assert main(["serve", "--host", "0.0.0.0", "--store", "memory://"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("127.0.0.1", "upstream.api_key", "tenant.from", "open_to_all"))
    assert "sk-operator" not in said
