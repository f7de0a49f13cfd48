"""Settings: which source wins, what is refused and in what words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cost import Prices
from proxy.settings import Settings, SettingsError, environment_tree, load_settings
from strategies import DEFAULT, TABLE

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write_config(text: str) -> None:
        (tmp_path / "condenser.toml").write_text(text, "utf-8")
        monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "condenser.toml"))

    return write_config


def test_without_any_source_the_defaults_of_the_design_hold() -> None:
    settings = load_settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8484)
    assert settings.strategy == DEFAULT == "mask+half-window"
    assert settings.store.ttl == 7 * 24 * 3600
    assert settings.inline_timeout == 10
    assert settings.store.url.startswith("sqlite:///")
    marks = {"prepare": 0.70, "trigger": 0.85, "target": 0.50, "step": 0.15}
    assert settings.marks.model_dump() == {**marks, "reserve": None}
    assert settings.tenant.source == "credential"
    assert settings.upstream.api_key is None


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('port = 1\nhost = "file"\nstrategy = "recent"\nwindow = 1000\n')
    monkeypatch.setenv("CONDENSER_PORT", "2")
    monkeypatch.setenv("CONDENSER_HOST", "environment")
    settings = load_settings(port=3)
    assert (settings.port, settings.host, settings.strategy, settings.window) == (3, "environment", "recent", 1000)


def test_tables_are_merged_key_by_key(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write('[upstream]\nbase_url = "http://file/v1"\nread_timeout = 5\nconnect_timeout = 6\n')
    monkeypatch.setenv("CONDENSER_UPSTREAM__READ_TIMEOUT", "7")
    upstream = load_settings(upstream={"connect_timeout": 8}).upstream
    assert (upstream.base_url, upstream.read_timeout, upstream.connect_timeout) == ("http://file/v1", 7, 8)


def test_environment_variables_nest_and_may_hold_json() -> None:
    tree = environment_tree(
        {
            "CONDENSER_STORE__URL": "memory://",
            "CONDENSER_STORE__TTL": "60",
            "CONDENSER_SESSIONS__HEADERS": '["x-a", "x-b"]',
            "CONDENSER_MODELS": '[{"match": "q*", "window": 512}]',
            "CONDENSER_CONFIG": "not a setting",
            "OTHER": "1",
        }
    )
    assert tree == {
        "store": {"url": "memory://", "ttl": "60"},
        "sessions": {"headers": ["x-a", "x-b"]},
        "models": [{"match": "q*", "window": 512}],
    }


def test_a_file_variant_reads_a_secret_without_its_line_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-secret\n", "utf-8")
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", str(tmp_path / "key"))
    key = load_settings().upstream.api_key
    assert key is not None
    assert key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in repr(load_settings())


def test_a_secret_file_that_is_missing_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=r"^CONDENSER_UPSTREAM__API_KEY_FILE names .*nowhere"):
        load_settings()


@pytest.mark.parametrize("text", [b"", b" \n"])
def test_a_secret_file_that_is_empty_is_no_secret(text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_bytes(text)
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(SettingsError, match=r"^upstream\.api_key: is empty"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "named", "nearest"),
    [
        ("prot = 1", "prot", "port"),
        ("[upstrem]\nx = 1", "upstrem", "upstream"),
        ('[upstream]\nbase_ulr = "http://x"', "upstream.base_ulr", "upstream.base_url"),
        ("[marks]\ntrigge = 0.5", "marks.trigge", "marks.trigger"),
        ('[[models]]\nmatch = "a"\nwindw = 512', "models.0.windw", "models.0.window"),
        ("[half-windw]\nx = 1", "half-windw", "half-window"),
        ('[summarizer]\nmodle = "m"', "summarizer.modle", "summarizer.model"),
        ('[tenant]\nform = "fixed"', "tenant.form", "tenant.from"),
        ('[[models]]\nmatch = "a"\n[models.marks]\nstpe = 0.2', "models.0.marks.stpe", "models.0.marks.step"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(text: str, named: str, nearest: str, write: Any) -> None:
    write(text)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert f"'{named}'" in str(raised.value)
    assert f"'{nearest}'" in str(raised.value)


def test_an_unknown_variable_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_STORE__TLT", "60")
    with pytest.raises(SettingsError, match=r"store\.ttl"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("port = 70000", "port"),
        ('port = "many"', "port"),
        ("window = 100", "window"),
        ('strategy = "no-such"', "half-window"),
        ('strategy = "off+mask"', "strategy"),
        ("[marks]\ntrigger = 1.5", "marks.trigger"),
        ("[store]\nttl = 0", "store.ttl"),
        ('[upstream]\nbase_url = "ftp://x"', "http://"),
        ('[upstream]\nbase_url = "http://"', "upstream.base_url: must name a host"),
        ('[upstream]\nbase_url = "http://h:port/v1"', "upstream.base_url: must name a host"),
        ('[upstream]\nbase_url = "http://h/v1\\n"', "upstream.base_url: must hold no white space"),
        ('[upstream]\nbase_url = "http://h/v1?key=x"', "upstream.base_url: must end with its path"),
        ('[tenant]\nfrom = "anyone"', "credential"),
        ('[tenant]\nfrom = "header:"', "tenant.from: must be 'credential', 'fixed' or 'header:NAME'"),
        ('[tenant]\nfrom = "header: x-user"', "tenant.from: ' x-user' is no name of a header"),
        ("[mask]\nkeep = 0", "[mask] 'keep'"),
        ("[mask]\nkeeps = 1", "[mask] unknown option 'keeps'"),
        ('[mask]\npaths = "half"', "[mask] 'paths'"),
        ('[[models]]\nmatch = "a"\nstrategy = "no-such"', "models.0.strategy"),
        ("[[models]]\nwindow = 512", "models.0.match"),
        ("upstream = 5", "upstream"),
        ("mask = 5", "mask"),
        ("models = 5", "models"),
        ("port = ", "cannot be read"),
    ],
)
def test_a_value_that_cannot_be_is_said_in_plain_words(text: str, says: str, write: Any) -> None:
    write(text)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "key",
    [
        "host",
        "strategy",
        "upstream.base_url",
        "upstream.api_key",
        "store.url",
        "summarizer.base_url",
        "summarizer.model",
        "judge.api_key",
        "tokenizer.ranks_dir",
        "tenant.from",
        "tenant.pepper",
        "tenant.trusted_proxies",
        "admin.token",
        "sessions.headers",
    ],
)
def test_a_variable_that_is_empty_is_an_error_and_not_the_default(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_" + key.upper().replace(".", "__"), "")
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert str(raised.value).startswith(key)


@pytest.mark.parametrize("table", ["upstream", "summarizer", "judge"])
@pytest.mark.parametrize("user", ["user:hunter2", "hunter2", ":hunter2", "user:hunter2/4", "user:hunter2@5"])
def test_an_address_with_a_password_is_refused_and_not_shown(table: str, user: str, write: Any) -> None:
    write(f'[{table}]\nbase_url = "http://{user}@h/v1"\n')
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert str(raised.value).startswith(f"{table}.base_url: must ")
    assert "hunter2" not in str(raised.value)


def test_where_an_address_has_a_password_the_error_says_where_a_key_belongs() -> None:
    entry = {"match": "m", "judge": {"base_url": "http://user:hunter2@h/v1"}}
    with pytest.raises(SettingsError, match=r"^models\.0\.judge\.base_url: .* api_key") as raised:
        load_settings(models=[entry])
    assert "hunter2" not in str(raised.value)


def test_the_path_of_an_address_may_have_an_at_sign() -> None:
    assert load_settings(upstream={"base_url": "http://h/@team/v1"}).upstream.base_url == "http://h/@team/v1"


def test_every_key_that_is_wrong_is_named_at_once(write: Any) -> None:
    write("prot = 1\nwindow = 5\n")
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert len(str(raised.value).splitlines()) == 2


def test_a_config_file_that_is_missing_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load_settings()


def test_a_config_file_that_is_no_utf_8_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_bytes(b'host = "\xff"')
    monkeypatch.setenv("CONDENSER_CONFIG", str(tmp_path / "c.toml"))
    with pytest.raises(SettingsError):
        load_settings()


def test_a_variable_that_is_both_a_value_and_a_table_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_STORE", "memory://")
    monkeypatch.setenv("CONDENSER_STORE__TTL", "60")
    with pytest.raises(SettingsError):
        load_settings()


def test_a_list_in_the_environment_may_be_parted_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_SESSIONS__HEADERS", "x-one, x-two")
    monkeypatch.setenv("CONDENSER_TENANT__TRUSTED_PROXIES", "10.0.0.1")
    settings = load_settings()
    assert settings.sessions.headers == ("x-one", "x-two")
    assert settings.tenant.trusted_proxies == ("10.0.0.1",)


@pytest.mark.parametrize("text", ["x-one,,x-two", "x-one,", "x one", '["x-one", ""]'])
def test_a_list_of_headers_has_names_only(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_SESSIONS__HEADERS", text)
    with pytest.raises(SettingsError, match=r"sessions\.headers\.\d: .* is no name of a header"):
        load_settings()


@pytest.mark.parametrize("text", ["[x-one]", "[", "{"])
def test_a_variable_that_only_begins_as_json_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_SESSIONS__HEADERS", text)
    with pytest.raises(SettingsError, match="CONDENSER_SESSIONS__HEADERS"):
        load_settings()


def test_a_list_that_is_none_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_MODELS", "qwen3")
    with pytest.raises(SettingsError, match="models: must be a list; in the environment it is one in JSON"):
        load_settings()


# -- strategies and models ---------------------------------------------------------------------------------


def test_each_strategy_has_a_table_of_its_own(write: Any) -> None:
    write("[mask]\nkeep = 5\n[half-window]\nmin_rounds = 6\n")
    assert load_settings().options == {"mask": {"keep": 5}, "half-window": {"min_rounds": 6}}


def test_the_environment_reaches_the_tables_of_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_HALF_WINDOW__MIN_ROUNDS", "8")
    assert load_settings().options == {"half-window": {"min_rounds": "8"}}


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_environment_wins_over_the_file_in_either_spelling_of_a_strategy(seed: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[half-window]\nmin_rounds = 6\n", "utf-8")
    code = "from proxy.settings import load_settings; print(load_settings().options['half-window']['min_rounds'])"
    environment = {
        "PYTHONHASHSEED": seed,
        "CONDENSER_CONFIG": str(tmp_path / "c.toml"),
        "CONDENSER_HALF_WINDOW__MIN_ROUNDS": "8",
    }
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == "8"


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


def test_a_model_that_nothing_matches_has_no_entry() -> None:
    assert Settings(models=({"match": "a*"},)).for_model("b") is None  # type: ignore[arg-type]


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "http://h"])
def test_an_upstream_address_ends_without_a_slash_and_has_a_path(url: str) -> None:
    assert load_settings(upstream={"base_url": url}).upstream.base_url == "http://h/v1"


@pytest.mark.parametrize("name", list(TABLE))
def test_every_strategy_can_be_the_default(name: str) -> None:
    assert load_settings(strategy=name).strategy == name


# -- models that we ask ourselves --------------------------------------------------------------------------


def test_a_judge_has_a_minute_and_a_summarizer_five() -> None:
    settings = load_settings()
    assert (settings.judge.timeout, settings.summarizer.timeout) == (60, 300)


def test_a_role_sends_nothing_that_is_not_set() -> None:
    for role in (load_settings().judge, load_settings().summarizer):
        assert role.model_dump(exclude={"timeout", "form"}, exclude_none=True) == {}


def test_the_address_of_a_role_gets_a_path_like_the_upstreams() -> None:
    assert load_settings(judge={"base_url": "http://h/"}).judge.base_url == "http://h/v1"


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
        ("background = 'sometimes'", "background.mode"),
        ("background = 5", "background"),
    ],
)
def test_a_role_or_background_that_cannot_be_is_said_in_plain_words(text: str, says: str, write: Any) -> None:
    write(text)
    with pytest.raises(SettingsError, match=says):
        load_settings()


@pytest.mark.parametrize("key", ["base_url = 'http://h/v1'", "model = 'm'", "api_key = 'k'", "window = 512"])
def test_a_summarizer_that_goes_on_from_the_view_is_the_requests_own_model(key: str, write: Any) -> None:
    write(f"[summarizer]\nform = 'continue'\n{key}\n")
    with pytest.raises(SettingsError, match=key.partition(" ")[0]):
        load_settings()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("[marks]\nreserve = 2000", 2_000),
        ("reserve = 2000", 2_000),
        ("reserve = 1000\n[marks]\nreserve = 2000", 2_000),
        ("reserve = 1000\n[marks]\nstep = 0.2", 1_000),
    ],
)
def test_the_reserve_is_one_of_the_marks_and_may_stand_alone(text: str, tokens: int, write: Any) -> None:
    write(text)
    assert load_settings().marks.reserve == tokens


def test_a_reserve_in_the_environment_wins_over_the_file_in_either_spelling(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("[marks]\nreserve = 2000\nstep = 0.2\n")
    monkeypatch.setenv("CONDENSER_RESERVE", "3000")
    marks = load_settings().marks
    assert (marks.reserve, marks.step) == (3_000, 0.2)


@pytest.mark.parametrize(
    ("entry", "tokens"),
    [({"reserve": 500}, 500), ({"marks": {"reserve": 600}}, 600), ({"reserve": 500, "marks": {"reserve": 600}}, 600)],
)
def test_a_models_reserve_may_stand_in_its_marks(entry: dict[str, Any], tokens: int) -> None:
    entries = ({"match": "m", **entry},)
    assert [each.held_back for each in Settings(models=entries).models] == [tokens]  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "mode"), [("idle", "idle"), (True, "on"), (False, "off"), ("off", "off")])
def test_a_model_may_have_a_background_of_its_own(value: object, mode: str) -> None:
    entries = ({"match": "m", "background": value},)
    assert [each.background for each in Settings(models=entries).models] == [mode]  # type: ignore[arg-type]


def test_what_comes_from_a_cache_costs_as_the_rest_where_nothing_is_said() -> None:
    given = {"input": 2.0, "output": 8.0}
    (entry,) = Settings(models=({"match": "m", "prices": given},)).models  # type: ignore[arg-type]
    assert entry.prices is not None
    assert entry.prices.to_prices() == Prices(2.0, 2.0, 8.0)


def test_background_is_a_table_or_its_mode_alone(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write('background = "idle"\n')
    assert load_settings().background.mode == "idle"
    monkeypatch.setenv("CONDENSER_BACKGROUND__CONCURRENCY", "2")
    found = load_settings().background
    assert (found.mode, found.concurrency) == ("idle", 2)


def test_the_environment_may_switch_the_background_off(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[background]\nconcurrency = 2\n")
    monkeypatch.setenv("CONDENSER_BACKGROUND", "off")
    found = load_settings().background
    assert (found.mode, found.concurrency) == ("off", 2)


@pytest.mark.parametrize("file", ["", 'background = "off"\n', '[background]\nmode = "off"\nallowance = 0.2\n'])
def test_the_environment_may_have_the_mode_alone_beside_keys_of_its_table(
    file: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file)
    monkeypatch.setenv("CONDENSER_BACKGROUND", "idle")
    monkeypatch.setenv("CONDENSER_BACKGROUND__CONCURRENCY", "3")
    found = load_settings().background
    assert (found.mode, found.concurrency) == ("idle", 3)
    assert found.allowance == (0.2 if "allowance" in file else 0.1)


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.0/33", "10.0.0.300", "p"])
def test_a_trusted_proxy_that_could_never_be_one_is_refused(given: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(tenant={"trusted_proxies": ["10.0.0.0/8", given]})
    assert str(raised.value).startswith("tenant.trusted_proxies")
    assert f"'{given}'" in str(raised.value)
