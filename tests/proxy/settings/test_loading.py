"""Settings: which source wins, what is refused and in what words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import SettingsError
from proxy.settings import environment_tree, load_settings

pytestmark = pytest.mark.usefixtures("no_settings")


def test_the_command_line_wins_over_environment_and_file(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("text", "says"),
    [
        ('strategy = "off+mask"', "strategy"),
        ('[upstream]\nbase_url = "ftp://x"', "http://"),
        ('[upstream]\nbase_url = "http://"', "upstream.base_url: must be http:// or https://, a host"),
        ('[upstream]\nbase_url = "http://h:port/v1"', "upstream.base_url: must be http:// or https://, a host"),
        (
            '[upstream]\nbase_url = "http://h/v1\\n"',
            "upstream.base_url: must be http:// or https://, a host and a path, without white space",
        ),
        (
            '[upstream]\nbase_url = "http://h/v1?key=x"',
            "upstream.base_url: must be http:// or https://, a host and a path, without",
        ),
        ('[tenant]\nfrom = "anyone"', "credential"),
        ('[tenant]\nfrom = "header:"', "tenant.from: must be 'credential', 'fixed' or 'header:NAME'"),
        (
            '[tenant]\nfrom = "header: x-user"',
            "tenant.from: must be 'credential', 'fixed' or 'header:NAME', not 'header: x-user'",
        ),
        ('[mask]\npaths = "half"', "mask.paths: must be a number"),
        ('[[models]]\nmatch = "a"\nstrategy = "no-such"', "models.0.strategy"),
        ("mask = 5", "mask"),
        ("models = 5", "models"),
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


def test_an_address_with_a_password_says_where_keys_belong() -> None:
    entry = {"match": "m", "judge": {"base_url": "http://user:hunter2@h/v1"}}
    with pytest.raises(SettingsError, match=r"^models\.0\.judge\.base_url: .* api_key") as raised:
        load_settings(models=[entry])
    assert "hunter2" not in str(raised.value)


def test_the_path_of_an_address_may_have_an_at_sign() -> None:
    assert load_settings(upstream={"base_url": "http://h/@team/v1"}).upstream.base_url == "http://h/@team/v1"


def test_a_variable_as_value_and_table_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(SettingsError, match=r"sessions\.headers\.\d: must be the name of a header, not '"):
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


def test_all_errors_are_reported_at_once_those_of_reading_too(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("port = ")
    monkeypatch.setenv("CONDENSER_LOG__FORMAT", "yaml")
    monkeypatch.setenv("CONDENSER_PORT", "x")
    monkeypatch.setenv("CONDENSER_MODELS", "[{")
    monkeypatch.setenv("CONDENSER_MASK__KEEP", "[")
    monkeypatch.setenv("CONDENSER_ADMIN__TOKEN_FILE", "/nowhere")
    with pytest.raises(SettingsError) as raised:
        load_settings()
    told = str(raised.value).splitlines()
    assert len(told) == 6
    for word in ("LOG__FORMAT", "PORT", "MODELS", "MASK__KEEP", "TOKEN_FILE", "not valid TOML"):
        assert len([line for line in told if word in line]) == 1, word


def test_a_value_and_a_file_for_one_key_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-hunter2")
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", "/nowhere")
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert str(raised.value) == (
        "CONDENSER_UPSTREAM__API_KEY and CONDENSER_UPSTREAM__API_KEY_FILE are both set; leave one of them out"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('log_format = "json"', "unknown key 'log_format'; did you mean 'log.format'?"),
        ('background = "idle"', "background: must be a table"),
        (
            "[options.mask]\nkeep = 3",
            "there is no table 'options'; tables of strategies such as [mask] have none above",
        ),
    ],
)
def test_each_key_has_one_place(text: str, says: str, write: Any) -> None:
    write(text)
    with pytest.raises(SettingsError, match=re.escape(says)):
        load_settings()
