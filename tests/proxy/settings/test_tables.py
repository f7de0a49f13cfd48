"""The tables of settings: strategies, models, the models that we ask ourselves, and what goes with them."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import SettingsError
from proxy.settings import Settings, load_settings
from proxy.settings.tables import ModelPrices

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.usefixtures("no_settings")


def test_each_strategy_has_a_table_of_its_own(write: Any) -> None:
    write("[mask]\nkeep = 5\n[half-window]\nmin_rounds = 6\n")
    assert load_settings().options == {"mask": {"keep": 5}, "half-window": {"min_rounds": 6}}


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_environment_wins_over_the_file_in_either_spelling_of_a_strategy(seed: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[half-window]\nmin_rounds = 6\n", "utf-8")
    code = "from proxy.settings import load_settings; print(load_settings().options['half-window']['min_rounds'])"
    environment = {
        "PYTHONHASHSEED": seed,
        "CONDENSER_CONFIG": str(tmp_path / "c.toml"),
        "CONDENSER_HALF_WINDOW__MIN_ROUNDS": "8",
    }
    made = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **environment}, cwd=ROOT, text=True)
    assert made.strip() == "8"


def test_the_first_model_entry_that_matches_counts() -> None:
    settings = Settings(
        models=(  # type: ignore[arg-type]
            {"match": "qwen3-coder*", "window": 1_000},
            {"match": "qwen3*", "window": 2_000},
            {"match": "*", "window": 3_000},
        )
    )
    windows = [
        found.window for name in ("qwen3-coder-30b", "qwen3-8b", "gpt-4o") if (found := settings.for_model(name))
    ]
    assert windows == [1_000, 2_000, 3_000]
    assert Settings(models=({"match": "a*"},)).for_model("b") is None  # type: ignore[arg-type]


def test_settings_are_frozen_and_a_role_sends_what_is_set() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]
    for role in (load_settings().judge, load_settings().summarizer):
        assert role.model_dump(exclude={"timeout", "form"}, exclude_none=True) == {}


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "http://h"])
def test_an_upstream_address_ends_without_a_slash_and_has_a_path(url: str) -> None:
    assert load_settings(upstream={"base_url": url}).upstream.base_url == "http://h/v1"
    assert load_settings(judge={"base_url": url}).judge.base_url == "http://h/v1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[judge]\nbase_url = "h:8000"', "judge.base_url"),
        ("[judge]\ntimeout = 0", "judge.timeout"),
        ("[judge]\ntemperature = 3", "judge.temperature"),
        ("[judge]\nform = 'continue'", "judge.form"),
        ("[summarizer]\nform = 'other'", "summarizer.form"),
        ("[summarizer]\nwindow = 10", "summarizer.window"),
        ("[background]\nconcurrency = 0", "background.concurrency"),
        ("[background]\nallowance = -1", "background.allowance"),
        ("[background]\nmode = 'sometimes'", "background.mode"),
        ("background = 5", "background"),
    ],
)
def test_a_role_or_background_that_cannot_be_is_said_in_plain_words(text: str, says: str, write: Any) -> None:
    write(text)
    with pytest.raises(SettingsError, match=says):
        load_settings()


@pytest.mark.parametrize("key", ["base_url = 'http://h/v1'", "model = 'm'", "api_key = 'k'", "window = 512"])
def test_the_requests_own_model_goes_on_from_its_view(key: str, write: Any) -> None:
    write(f"[summarizer]\nform = 'continue'\n{key}\n")
    with pytest.raises(SettingsError, match=key.partition(" ")[0]):
        load_settings()


def test_cached_tokens_cost_as_others_and_prompts_need_a_price(write: Any) -> None:
    given = {"input": 2.0, "output": 8.0}
    (entry,) = Settings(models=({"match": "m", "prices": given},)).models  # type: ignore[arg-type]
    assert entry.prices == ModelPrices(input=2.0, cached_input=2.0, cache_write=2.0, output=8.0)
    write('[[models]]\nmatch = "m"\nprices = { output = 8.0 }\n')
    with pytest.raises(SettingsError, match=r"^models\.0\.prices\.input: is missing \([^\n]*\)$"):
        load_settings()


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.0/33", "10.0.0.300", "p"])
def test_a_trusted_proxy_that_could_never_be_one_is_refused(given: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(server={"trusted_proxies": ["10.0.0.0/8", given]})
    assert str(raised.value).startswith("server.trusted_proxies")
    assert f"'{given}'" in str(raised.value)


def test_hosts_origins_and_controls_are_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_SERVER__HOSTS", "Proxy.lan, *.example.com")
    monkeypatch.setenv("CONDENSER_SERVER__ORIGINS", "https://App.example.com:8443,app://obsidian.md,*")
    server = load_settings().server
    assert server.hosts == ("proxy.lan", "*.example.com")
    assert server.origins == ("https://app.example.com:8443", "app://obsidian.md", "*")
    monkeypatch.setenv("CONDENSER_CONTROLS__ALLOW", "session, No-Store,dry-run")
    assert load_settings().controls.allow == ("session", "no-store", "dry-run")


def test_hosts_and_origins_that_can_be_none_are_refused() -> None:
    for host in ["a:80", "http://a", "*", "*.", "a.*.b", "", "a/b"]:
        with pytest.raises(SettingsError, match=r"server\.hosts\.0: must be a name without a port"):
            load_settings(server={"hosts": [host]})
    for origin in ["a.example", "https://a/", "https://", "null", "https://a/b", "https://*.a", ""]:
        with pytest.raises(SettingsError, match=r"server\.origins\.0: must be an origin such as https://app"):
            load_settings(server={"origins": [origin]})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_store", "there is no control 'no_store'; did you mean 'no-store'?"),
        ("windw", "there is no control 'windw'; did you mean 'window'?"),
        ("x", "there is no control 'x'; known: session, strategy, options, window, history, if-head, memory"),
    ],
)
def test_an_unknown_control_names_the_nearest_or_all(name: str, says: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"controls.allow.1: {says}")):
        load_settings(controls={"allow": ["session", name]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"upstream": {"api_key": "sk-x"}}, "upstream: api_key needs base_url"),
        ({"upstreams": [{"name": "a"}]}, "upstreams.0.base_url: is missing"),
        ({"upstreams": [{"name": "A b", "base_url": "http://h"}]}, "upstreams.0.name: must be lower-case"),
        ({"upstreams": [{"name": "a", "base_url": "http://h"}] * 2}, "upstreams: two of them have one name"),
        (
            {"upstreams": [{"name": "a", "base_url": "http://h", "protocols": ["x"]}]},
            "upstreams.0.protocols.0: must be",
        ),
        ({"upstreams": [{"name": "a", "base_url": "http://h", "api_key_file": "/nowhere"}]}, "api_key_file names no"),
    ],
)
def test_upstreams_that_cannot_be_are_said_in_plain_words(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(**given)
    assert says in str(raised.value)
    assert "sk-x" not in str(raised.value)


def test_the_first_source_that_names_upstreams_names_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-file\n", "utf-8")
    file = tmp_path / "condenser.toml"
    named = f'[[upstreams]]\nname = "a"\nbase_url = "http://a"\napi_key_file = "{tmp_path / "key"}"\n'
    monkeypatch.setenv("CONDENSER_CONFIG", str(file))
    file.write_text(named)
    (entry,) = load_settings().upstreams
    assert entry.api_key is not None
    assert (entry.base_url, entry.api_key.get_secret_value()) == ("http://a/v1", "sk-file")
    assert load_settings(upstream={"base_url": "http://b"}).upstreams == ()
    file.write_text('[upstream]\nbase_url = "http://b"\napi_key = "sk-b"\ndiscover = false\n')
    monkeypatch.setenv("CONDENSER_UPSTREAMS", '[{"name": "a", "base_url": "http://a"}]')
    settings = load_settings()
    assert (settings.upstream.base_url, settings.upstream.api_key, settings.upstream.discover) == (None, None, False)
