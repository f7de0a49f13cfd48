from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli import main
from tests.proxy.replaying.test_play import talk
from tests.support.data import MISSING, SHORT


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps({"messages": talk(turns)}) + "\n" for turns in (20, 12)))
    return path


def test_off_is_always_the_first_row(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--strategy", "recent,off,extract", "--window", "1024"]) == 0

    rows = capsys.readouterr().out.splitlines()[4:7]

    assert [row.split()[0] for row in rows] == ["off", "recent", "extract"]


def test_the_default_window_is_said_to_be_one(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--limit", "1"]) == 0

    assert "1 conversation, no model named, window 8,192 (default, none is known)" in capsys.readouterr().out


def test_a_known_model_brings_its_own_window(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--limit", "1", "--model", "gpt-4o", "--strategy", "recent"]) == 0

    assert "gpt-4o, window 128,000 (bundled table)" in capsys.readouterr().out


def test_json_has_the_figures_of_every_strategy(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--strategy", "recent", "--window", "1024", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    off, recent = document["strategies"]

    assert (document["conversations"], document["window"]) == (2, 1_024)
    assert (off["requests"], off["saved_share"], recent["overflows"]) == (32, 0, 0)
    assert 0 < recent["saved_share"] < 1


def test_a_file_that_cannot_be_read_exits_2_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"messages": [')

    assert main(["replay", str(path)]) == 2

    assert capsys.readouterr().err.startswith(f"condenser: {path}: line 1: is not JSON")


@pytest.mark.parametrize(
    "wrong", [["--strategy", "recent,nope"], ["--strategy", ""], ["--window", "100"], ["--limit", "0"]]
)
def test_a_wrong_argument_exits_2(recorded: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(recorded), *wrong])

    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_recorded_conversations_are_played_whole(capsys: pytest.CaptureFixture[str]) -> None:
    if not SHORT.exists():
        pytest.skip(MISSING)

    assert main(["replay", str(SHORT), "--limit", "3", "--window", "6144", "--json"]) == 0

    off, default = json.loads(capsys.readouterr().out)["strategies"]
    assert (default["requests"], default["degraded"], default["overflows"]) == (off["requests"], 0, 0)
    assert default["condensations"] > 0
