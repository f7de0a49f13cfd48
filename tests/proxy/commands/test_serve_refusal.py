"""`serve` does not lend the operator's key to anyone who reaches the port."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from proxy.commands.serve import gives_the_key_away, prepare
from proxy.settings import Settings

WITH_KEY = {"base_url": "http://127.0.0.1:1/v1", "api_key": "sk-operator"}


def settings(**given: Any) -> Settings:
    return Settings(**{"store": {"url": "memory://"}, "upstream": WITH_KEY, **given})


def test_an_operators_key_beyond_loopback_is_refused_but_for_each_way_out() -> None:
    for host in ["0.0.0.0", "192.0.2.1", "::", "proxy.example"]:
        assert gives_the_key_away(settings(host=host))
    ways_out: list[dict[str, Any]] = [
        *({"host": "127.0.0.1"}, {"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "open_to_all": True}),
        {"host": "0.0.0.0", "upstream": {"base_url": "http://127.0.0.1:1/v1"}},
        {"host": "0.0.0.0", "tenant": {"from": "header:x-user"}},
    ]
    for given in ways_out:
        assert not gives_the_key_away(settings(**given))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"summarizer": {"api_key": "sk-operator"}}, "summarizer.api_key"),
        ({"judge": {"api_key": "sk-operator"}}, "judge.api_key"),
        ({"models": [{"match": "*", "summarizer": {"api_key": "sk-operator"}}]}, "models[0].summarizer.api_key"),
        ({"models": [{"match": "*", "judge": {"api_key": "sk-operator"}}]}, "models[0].judge.api_key"),
    ],
)
def test_every_key_of_the_settings_is_the_operators(given: dict[str, Any], named: str) -> None:
    built = settings(host="0.0.0.0", **{"upstream": {"base_url": "http://127.0.0.1:1/v1"}, **given})
    assert gives_the_key_away(built)
    assert built.operator_keys == [named]


def test_a_refusal_shows_no_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONDENSER_UPSTREAM__API_KEY", "sk-operator")
    assert main(["serve", "--host", "0.0.0.0", "--store", "memory://", "--upstream", "http://h/v1"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("127.0.0.1", "upstream.api_key", "tenant.from", "open_to_all"))
    assert "sk-operator" not in said


def test_who_may_use_an_operators_key_is_said_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(settings(host="0.0.0.0", open_to_all=True))
    [line] = [line.split(" ", 2)[2] for line in capsys.readouterr().err.splitlines() if " WARNING " in line]
    assert line.startswith("anyone who reaches 0.0.0.0:")
    assert "sk-operator" not in line


def test_a_token_that_can_be_guessed_is_said_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    for token, warned in (("1234", True), ("0" * 16, False)):
        prepare(settings(admin={"token": token}))
        said = capsys.readouterr().err
        assert ("admin.token has fewer than 16 characters" in said) is warned
        assert token not in said


def no_database(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    path.write_bytes(b"this is no database" * 100)
    return path


def below_a_file(tmp_path: Path) -> Path:
    return no_database(tmp_path) / "below" / "s.db"


def with_a_key_that_is_none(tmp_path: Path) -> Path:
    (tmp_path / "tenant.key").mkdir()
    return tmp_path / "s.db"


def test_an_address_that_is_none_is_one_line_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--store", "redis://u:hunter2@h:bad/0"]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 2)
    assert "CONDENSER_STORE__URL_FILE" in err.splitlines()[0]
    assert "store.url" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("name", ["tenant.key", "admin.token"])
@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (lambda file: file.chmod(0o606), "can be written by other users"),
        (lambda file: file.chmod(0o660), "can be written by other users"),
        (lambda file: file.write_text("\n"), "is empty"),
        (lambda file: os.chown(file, 65534, -1), "belongs to another user"),
    ],
)
def test_a_secret_that_others_may_have_written_is_refused(
    planted: Callable[[Path], object], says: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text("hush")
    file.chmod(0o600)
    try:
        planted(file)
    except PermissionError:
        pytest.skip("only root may give a file away")
    assert main(["serve", "--port", "0", "--store", f"sqlite:///{tmp_path}/s.db"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{file} {says}" in err
    assert "hush" not in err


@pytest.mark.parametrize("made", [no_database, below_a_file, with_a_key_that_is_none])
def test_an_unusable_store_is_one_line_and_nothing_listens(
    made: Callable[[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{made(tmp_path)}"
    assert main(["serve", "--port", "0", "--store", url]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"condenser: store.url is {url}, which cannot be opened: ")
    assert len(err.splitlines()) == 1


def test_a_single_users_proxy_listens_on_this_machine_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--single-user", "--host", "0.0.0.0", "--store", "memory://"]) == 2
    assert "refusing to start on 0.0.0.0 with --single-user" in capsys.readouterr().err
