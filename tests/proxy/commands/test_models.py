"""`condenser models update` writes a table beside the settings, and the newest table is the one that is read."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.settings.loading import model_table
from proxy.tokens.models import BUNDLED, ModelWindow
from tests.proxy.command_line import run
from tests.support.admin_api import TOKEN
from tests.support.proxy import running_proxy

ROW = {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": 300_000, "input_cost_per_token": 7e-6}
METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n"
GENAI = """
import datetime
from types import SimpleNamespace as Row

def prices(fresh, reply):
    return Row(input_mtok=fresh, output_mtok=reply, cache_read_mtok=None, cache_write_mtok=None)

tiers = Row(base=2, tiers=[Row(start=272_000, price=4)])
dated = [
    Row(constraint=None, prices=prices(1, 4)),
    Row(constraint=Row(start_date=datetime.date(2020, 1, 1)), prices=prices(tiers, 8)),
    Row(constraint=Row(start_date=datetime.date(9999, 1, 1)), prices=prices(9, 36)),
]
providers = [
    Row(id="openai", models=[
        Row(id="gpt-7-sol", context_window=1_050_000, prices=dated),
        Row(id="gpt-7-odd", context_window=8_192, prices=prices(1, 1)),
    ]),
    Row(id="somebody", models=[Row(id="gpt-8-sol", context_window=1_050_000, prices=prices(1, 1))]),
]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own" / "condenser.toml"
    path.parent.mkdir()
    path.write_text('strategy = "recent"\n')
    monkeypatch.setenv("CONDENSER_CONFIG", str(path))
    return path


@pytest.fixture
def litellm_map(tmp_path: Path) -> Path:
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"gpt-7": ROW, "gpt-4o": {**ROW, "max_input_tokens": 64_000}}))
    return path


def update(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    return run(capsys, "models", "update", *words)


def test_a_file_renews_the_table_beside_the_settings_and_the_rest_stays(
    config: Path, litellm_map: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model_table()
    code, out, err = update(capsys, str(litellm_map))
    table = model_table()
    assert (code, err, table.path) == (0, "", config.with_name("models.toml"))
    assert out.endswith(f", of {table.made}, from map.json\n")
    assert [table.find(model) for model in ("gpt-7", "gpt-4o")] == [ModelWindow(300_000), ModelWindow(64_000)]
    assert (prices := table.prices("gpt-7", 0)) is not None
    assert prices.input == 7.0
    for model in ("claude-opus-5-5", "gpt-6.2-sol", "gemini-4-argon"):
        assert table.find(model) == before.find(model)
        assert [table.prices(model, now) for now in (0, 4e9)] == [before.prices(model, now) for now in (0, 4e9)]
    _, out, _ = run(capsys, "check", "--offline", "--model", "gpt-7")
    assert f"window    300,000 (renewed table, {table.path})\n" in out
    assert "prices    input 7, cached 7, cache write 7, output 0 (renewed table" in out


def test_packages_are_read_and_litellm_is_not_imported(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of genai-prices a window counts if another version of the model has it, and a price of the vendor's own."""
    files = {
        "litellm/__init__.py": "raise AssertionError('imported')",
        "litellm/model_prices_and_context_window_backup.json": json.dumps({"gpt-7": ROW}),
        "litellm-9.9.dist-info/METADATA": METADATA.format("litellm", "9.9"),
        "genai_prices/__init__.py": "",
        "genai_prices/data.py": GENAI,
        "genai_prices-0.9.dist-info/METADATA": METADATA.format("genai-prices", "0.9"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    # Another test may have imported the real ones. They are back afterwards, and what is imported here is gone.
    real = [name for name in sys.modules if name.partition(".")[0] in ("litellm", "genai_prices")]
    for name in {*real, "genai_prices", "genai_prices.data"}:
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    code, out, err = update(capsys)
    assert (code, err, "from litellm==9.9, then genai-prices==0.9\n" in out) == (0, "", True)
    table = model_table()
    assert table.find("gpt-7") == ModelWindow(300_000)
    assert table.find("gpt-7-sol") == ModelWindow(1_050_000, max_input=922_000)
    assert [table.find(model) for model in ("gpt-7-odd", "gpt-8-sol")] == [None, None]
    now, later = table.prices("gpt-7-sol", 0), table.prices("gpt-7-sol", 1e12)
    assert now is not None
    assert later is not None
    assert (now.input, now.output, now.step, later.input) == (2.0, 8.0, (272_000, 2.0, 1.0), 9.0)
    code, out, err = update(capsys)
    assert (code, out, "that is newer than the table: install one, or name a FILE" in err) == (1, "", True)


def test_a_table_of_a_newer_release_is_taken_as_it_is_and_an_older_one_does_not_hold(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given.toml"
    for made, window in (("2999-01-01", 5_000), ("2020-01-01", None)):
        given.write_text(f'made = {made}\n[models]\n"novel" = {{ window = 5000 }}\n')
        code, out, _ = update(capsys, str(given))
        assert (code, config.with_name("models.toml").read_text()) == (0, given.read_text())
        found = model_table().find("novel")
        assert (found and found.window) == window
        assert (f"the {BUNDLED} is of " in out) is (window is None)


@pytest.mark.parametrize("text", ["{", "[]", '{"m": 5}', "<html>"])
def test_what_is_no_table_changes_nothing(
    text: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "map.json"
    path.write_text(text)
    code, out, err = update(capsys, str(path))
    assert (code, out, err.startswith(f"condenser: {path}: no table of models: ")) == (1, "", True)
    assert [each.name for each in config.parent.iterdir()] == [config.name]


def test_a_broken_table_beside_the_settings_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config.with_name("models.toml")
    path.write_text('[models]\n"m" = 5')
    code, _, err = run(capsys, "check", "--offline", "--model", "m")
    assert (code, err.startswith(f"condenser: the table of models cannot be read: {path}: ")) == (2, True)


@pytest.mark.parametrize(("days", "is_noted"), [(30, False), (31, True)])
def test_doctor_notes_a_table_that_is_older_than_a_month(
    days: int, is_noted: bool, config: Path, upstream: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made = 2_000_000_000 // 86_400 * 86_400
    config.with_name("models.toml").write_text('made = 2033-05-18\n[models]\n"m" = { window = 5000 }\n')
    with running_proxy(upstream.url, clock=lambda: made + days * 86_400.0, admin={"token": TOKEN}) as proxy:
        _, out, _ = run(capsys, "doctor", "--url", proxy.url, "--token", TOKEN)
        assert ("Its table of models is of 2033-05-18" in out) is is_noted
        assert ("condenser models update" in out) is is_noted
