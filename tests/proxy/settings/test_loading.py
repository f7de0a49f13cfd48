"""Settings: which source wins, what is refused and in what words."""

import re
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import SettingsError
from proxy.settings import load_settings

pytestmark = pytest.mark.usefixtures("no_settings")


def test_the_last_source_wins_key_by_key(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write('port = 1\nhost = "file"\nstrategy = "recent"\nwindow = 1000\n')
    monkeypatch.setenv("CONDENSER_PORT", "2")
    monkeypatch.setenv("CONDENSER_HOST", "environment")
    settings = load_settings(port=3)
    assert (settings.port, settings.host, settings.strategy, settings.window) == (3, "environment", "recent", 1000)
    write('[upstream]\nbase_url = "http://file/v1"\nread_timeout = 5\nconnect_timeout = 6\n')
    monkeypatch.setenv("CONDENSER_UPSTREAM__READ_TIMEOUT", "7")
    upstream = load_settings(upstream={"connect_timeout": 8}).upstream
    assert (upstream.base_url, upstream.read_timeout, upstream.connect_timeout) == ("http://file/v1", 7, 8)


def test_a_file_variant_reads_a_secret_without_its_line_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-secret\n", "utf-8")
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("CONDENSER_UPSTREAM__BASE_URL", "http://h/v1")
    key = load_settings().upstream.api_key
    assert key is not None
    assert key.get_secret_value() == "sk-secret"
    assert "sk-secret" not in repr(load_settings())


def test_a_secret_file_must_be_there_and_hold_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(SettingsError, match=r"^CONDENSER_UPSTREAM__API_KEY_FILE names .*nowhere"):
        load_settings()
    for text in [b"", b" \n"]:
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
        ('[admin]\nlisten = "9090"', "admin.listen: must be a host and a port"),
        (f"a = {'[' * 9_000}", "is not valid TOML"),
        ('[admin]\nlisten = "h:8484"', "admin: listen needs another port than the one for requests, 8484"),
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


NEVER_EMPTY = """
    host strategy upstream.base_url upstream.api_key store.url summarizer.base_url summarizer.model judge.api_key
    tokenizer.ranks_dir tenant.from tenant.pepper server.trusted_proxies admin.token sessions.headers
"""


@pytest.mark.parametrize("key", NEVER_EMPTY.split())
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


def test_an_address_may_have_an_at_sign_but_no_password() -> None:
    entry = {"match": "m", "judge": {"base_url": "http://user:hunter2@h/v1"}}
    with pytest.raises(SettingsError, match=r"^models\.0\.judge\.base_url: .* api_key") as raised:
        load_settings(models=[entry])
    assert "hunter2" not in str(raised.value)
    assert load_settings(upstream={"base_url": "http://h/@team/v1"}).upstream.base_url == "http://h/@team/v1"


def test_a_variable_as_value_and_table_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_STORE", "memory://")
    monkeypatch.setenv("CONDENSER_STORE__TTL", "60")
    with pytest.raises(SettingsError):
        load_settings()


def test_a_list_in_the_environment_may_be_parted_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_SESSIONS__HEADERS", "x-one, x-two")
    monkeypatch.setenv("CONDENSER_SERVER__TRUSTED_PROXIES", "10.0.0.1")
    monkeypatch.setenv("CONDENSER_MODELS", '[{"match": "q*", "window": 512}]')
    settings = load_settings()
    assert [(each.match, each.window) for each in settings.models] == [("q*", 512)]
    assert settings.sessions.headers == ("x-one", "x-two")
    assert settings.server.trusted_proxies == ("10.0.0.1",)


def test_lists_are_parted_by_commas_and_hold_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ["x-one,,x-two", "x-one,", "x one", '["x-one", ""]']:
        monkeypatch.setenv("CONDENSER_SESSIONS__HEADERS", text)
        with pytest.raises(SettingsError, match=r"sessions\.headers\.\d: must be the name of a header, not '"):
            load_settings()
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


def problems(**given: Any) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load_settings(**given)
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("WINDOW", "abc", "window: must be a valid integer, not 'abc'"),
        ("WINDOW", "100", "window: must be greater than or equal to 256, not '100'"),
        ("PORT", "70000", "port: must be less than or equal to 65535, not '70000'"),
        ("PORT", "8.5", "port: must be a valid integer, not '8.5'"),
        ("PORT", "9" * 5_000, "port: Unable to parse input string as an integer"),
        ("MARKS__TRIGGER", "high", "marks.trigger: must be a valid number, not 'high'"),
        ("MARKS__TRIGGER", "1.5", "marks.trigger: must be less than or equal to 1, not '1.5'"),
        ("STORE__TTL", "0", "store.ttl: must be greater than 0, not '0'"),
        ("USAGE_PROBE", "perhaps", "usage_probe: must be a valid boolean, not 'perhaps'"),
        ("ECONOMY", "pings", "economy: must be 'off', 'advise' or 'auto', not 'pings'"),
        ("UPSTREAM", "http://user:hunter2@h", "upstream: must be a table"),
        ("STORE", "somewhere", "store: must be a table ("),
        ("ADMIN", "hunter2secret", "admin: must be a table ("),
        ("MODELS", '[{"window": 512}]', "models.0.match: is missing"),
        ("MASK__KEEP", "0", "mask.keep: must be a whole number at least 1, not '0'"),
        ("HALF_WINDOW__MIN_ROUNDS", "x", "half-window.min_rounds: must be a whole number at least 2, not 'x'"),
        ("BACKGROUND__MODE", "sometimes", "background.mode: must be 'on', 'idle' or 'off', not 'sometimes'"),
        ("MARKS__RESERVE", "-1", "marks.reserve: must be greater than or equal to 0, not '-1'"),
        ("STRATEGY", "mask+foo", "strategy: unknown strategy 'foo' in 'mask+foo'; known: "),
    ],
)
def test_a_wrong_value_has_our_words(variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"CONDENSER_{variable}", value)
    (line,) = problems()
    assert line.startswith(says)
    assert line.endswith(f" (CONDENSER_{variable})")
    assert "hunter2" not in line


def test_a_wrong_value_of_a_file_is_reported_with_the_file(write: Any, tmp_path: Path) -> None:
    write('window = "abc"\n[mask]\nkeep = 0\n')
    assert problems() == [
        f"window: must be a valid integer, not 'abc' ({tmp_path}/condenser.toml)",
        f"mask.keep: must be a whole number at least 1, not '0' ({tmp_path}/condenser.toml)",
    ]


def test_a_wrong_value_is_reported_with_the_source_that_wins(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("window = 1\n")
    monkeypatch.setenv("CONDENSER_WINDOW", "2")
    assert problems() == ["window: must be greater than or equal to 256, not '2' (CONDENSER_WINDOW)"]
    assert problems(window=3) == ["window: must be greater than or equal to 256, not '3' (--window)"]
    assert problems(window=300, store={"url": "x"})[0].endswith(" (--store)")


@pytest.mark.parametrize("key", ["upstream.api_key", "admin.token", "tenant.pepper", "judge.api_key"])
def test_a_secret_of_a_wrong_type_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"CONDENSER_{key.upper().replace('.', '__')}"
    monkeypatch.setenv(variable, '["hunter2"]')
    assert problems() == [f"{key}: must be a valid string ({variable})"]


@pytest.mark.parametrize("value", ["redis://:hunter2@h:1", "user:hunter2@h", "sk-hunter2", "hunter2" * 20])
def test_a_credential_that_stands_in_a_wrong_place_is_not_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PORT", "SESSIONS__HEADERS", "TENANT__TRUSTED_PROXIES", "MARKS__STEP", "STORE__URL"):
        monkeypatch.setenv(f"CONDENSER_{variable}", value.replace("/", ""))
    assert "hunter2" not in "\n".join(problems())


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("CONDENSER_STOR__URL", "unknown variable CONDENSER_STOR__URL; did you mean CONDENSER_STORE__URL?"),
        ("CONDENSER_STORE__URI", "unknown variable CONDENSER_STORE__URI; did you mean CONDENSER_STORE__URL?"),
        ("CONDENSER_HALFWINDOW__X", "unknown variable CONDENSER_HALFWINDOW__X; did you mean CONDENSER_HALF_WINDOW__X?"),
        ("CONDENSER_MASK__KEEPS", "unknown variable CONDENSER_MASK__KEEPS; did you mean CONDENSER_MASK__KEEP?"),
        ("CONDENSER_ADMIN__X", "unknown variable CONDENSER_ADMIN__X"),
        ("CONDENSER_LOG_LEVEL", "unknown variable CONDENSER_LOG_LEVEL; did you mean CONDENSER_LOG__LEVEL?"),
        ("CONDENSER_QUUX", "unknown variable CONDENSER_QUUX"),
        ("CONDENSER_QUUX__X__Y", "unknown variable CONDENSER_QUUX__X__Y"),
    ],
)
def test_an_unknown_variable_is_named_as_written(variable: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert problems() == [says]


def test_each_unknown_variable_is_named_with_its_ending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2", "utf-8")
    monkeypatch.setenv("CONDENSER_UPSTRAEM__API_KEY_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("CONDENSER_UPSTRAEM__BASE_URL", "http://h")
    monkeypatch.setenv("CONDENSER_UPSTREAM__APIKEY_FILE", str(tmp_path / "secret"))
    assert problems() == [
        "unknown variable CONDENSER_UPSTREAM__APIKEY_FILE; did you mean CONDENSER_UPSTREAM__API_KEY_FILE?",
        "unknown variable CONDENSER_UPSTRAEM__API_KEY_FILE; did you mean CONDENSER_UPSTREAM__API_KEY_FILE?",
        "unknown variable CONDENSER_UPSTRAEM__BASE_URL; did you mean CONDENSER_UPSTREAM__BASE_URL?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'?"),
        ("[upstrem]\nx = 1", "unknown key 'upstrem'; did you mean 'upstream'?"),
        (
            '[[models]]\nmatch = "a"\n[models.marks]\nstpe = 0.2',
            "unknown key 'models.0.marks.stpe'; did you mean 'models.0.marks.step'?",
        ),
        ("[marks]\nquux = 1", "unknown key 'marks.quux'"),
        ("[store]\nulr = 1", "unknown key 'store.ulr'; did you mean 'store.url'?"),
        ("quux = 1", "unknown key 'quux'"),
        ("[half_window]\nmin_rounds = 4", "unknown key 'half_window'; did you mean 'half-window'?"),
        ("[off]\nquux = 1", "unknown key 'off.quux'"),
        ("[dynacontext]\nquux = 1", "unknown key 'dynacontext.quux'"),
    ],
)
def test_an_unknown_key_names_the_nearest_of_its_table(text: str, says: str, write: Any, tmp_path: Path) -> None:
    write(text)
    assert problems() == [f"{says} ({tmp_path}/condenser.toml)"]


def test_an_unknown_key_in_a_json_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSER_MODELS", '[{"match": "m", "windw": 512}]')
    assert problems() == ["unknown key 'models.0.windw'; did you mean 'models.0.window'? (CONDENSER_MODELS)"]


def test_a_file_that_is_no_toml_is_named(write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("port = \n")
    assert problems()[0].startswith(f"{tmp_path}/condenser.toml is not valid TOML: ")
    (tmp_path / "condenser.toml").write_bytes(b'host = "\xff"')
    assert problems() == [f"the settings are in {tmp_path}/condenser.toml, which cannot be read: it is not UTF-8"]
    monkeypatch.setenv("CONDENSER_CONFIG", "/nowhere.toml")
    assert problems() == ["the settings are in /nowhere.toml, which cannot be read: No such file or directory"]


@pytest.mark.parametrize("options", [{"judge": "inline", "tail": "drop"}, {"judge": "inline", "mode": "openhands"}])
def test_options_that_contradict_each_other_are_refused_by_their_table(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"^dynacontext: 'tail=drop' \(also by 'mode'\) needs 'judge=after'"):
        load_settings(dynacontext=options)
