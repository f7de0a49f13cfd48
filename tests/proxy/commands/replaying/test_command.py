import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import main
from tests.proxy.commands.replaying.test_play import questions_and_answers
from tests.support.data import MISSING, SHORT
from tests.support.stage import chat


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps({"messages": questions_and_answers(turns)}) + "\n" for turns in (20, 12)))
    return path


def test_the_table_names_model_and_window_and_begins_with_off(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recorded), "--limit", "1", "--strategy", "recent,off"]) == 0
    out = capsys.readouterr().out
    assert "1 conversation, no model named, window unknown; condensed at marks.most, 200,000" in out
    assert out.startswith("All 20 requests fit as they are; with recent, ")
    assert [row.split()[0] for row in out.splitlines()[6:8]] == ["off", "recent"]
    assert main(["replay", str(recorded), "--limit", "1", "--model", "gpt-4o", "--strategy", "recent"]) == 0
    assert "gpt-4o, window 128,000 (bundled table)" in capsys.readouterr().out


def test_the_window_is_the_one_that_codex_was_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a login's models accept is not what the table has of the same name."""
    lines: list[tuple[str, dict[str, Any]]] = [("session_meta", {"id": "c1"}), ("turn_context", {"model": "gpt-5.5"})]
    lines += [("event_msg", {"type": "task_started", "model_context_window": 258_400})]
    for turn in range(20):
        for role, kind in (("user", "input_text"), ("assistant", "output_text")):
            said = [{"type": kind, "text": f"Bed {turn}. " * 9}]
            lines.append(("response_item", {"type": "message", "role": role, "content": said}))
    path = tmp_path / "rollout.jsonl"
    path.write_text("\n".join(json.dumps({"type": kind, "payload": payload}) for kind, payload in lines))
    assert main(["replay", str(path), "--strategy", "recent", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["window"], read["window_source"]) == (258_400, "recorded by the client")
    for arguments, window in ((["--window", "9000"], 9_000), (["--model", "gpt-4o"], 128_000)):
        assert main(["replay", str(path), "--strategy", "recent", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["window"] == window


def test_money_is_about_that_of_another_version_where_a_model_has_no_price(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recorded), "--limit", "1", "--model", "gpt-6.9-sol", "--window", "1000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "about USD at the prices of gpt-6-2-sol, another version" in out
    assert re.search(r"\(about USD \d", out)


def test_without_a_window_nothing_is_refused_and_marks_most_condenses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"model": "novel", "messages": questions_and_answers(20)}))
    monkeypatch.setenv("CONDENSER_MARKS__MOST", "800")
    assert main(["replay", str(path), "--strategy", "recent", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["window"], read["window_source"]) == (None, "unknown; condensed at marks.most, 800")
    off, recent, _ = read["strategies"]
    assert (off["unanswered"], recent["unanswered"], recent["condensations"] > 0) == (0, 0, True)
    monkeypatch.setenv("CONDENSER_MARKS__MOST", "0")
    assert main(["replay", str(path), "--strategy", "recent"]) == 2
    assert capsys.readouterr().err == "condenser: no window is known, and marks.most is 0: give --window\n"


def test_json_has_the_figures_of_every_strategy(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(recorded), "--strategy", "recent", "--window", "1024", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    off, recent, auto = document["strategies"]
    assert (document["conversations"], document["window"]) == (2, 1_024)
    assert (off["requests"], off["saved_share"], recent["overflows"]) == (32, 0, 0)
    assert 0 < recent["saved_share"] < 1
    assert recent["intervals"]["saved"][1] <= recent["saved_share"] <= recent["intervals"]["saved"][2]
    assert [each["strategy"] for each in document["each"]] == ["off", "recent", "recent economy=auto"] * 2
    assert auto["forwarded"] <= recent["forwarded"]
    assert printed.err == ""


def test_the_first_sentence_names_the_cheapest_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": chat(60)}))
    asked = ["replay", str(tmp_path / "talk.jsonl"), "--strategy", "recent", "--model", "gpt-4o", "--json"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    named = r"All \d+ requests fit as they are; with recent economy=auto, the cheapest of 2 ways,"
    assert re.match(rf"{named} \d+ % of the cost is saved \(USD 0\.\d+\)\.$", found["verdict"]), found["verdict"]
    assert main([*asked, "--economy", "auto"]) == 0
    _, chosen = json.loads(capsys.readouterr().out)["strategies"]
    assert (chosen["strategy"], chosen["forwarded"]) == ("recent", found["strategies"][2]["forwarded"])


def test_several_files_are_one_replay_with_the_model_that_they_name(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [("user", "text", "Hi."), ("assistant", "text", "Hello.")]
    lines = [
        {"type": role, "message": {"role": role, "model": "claude-opus-4-8", "content": [{"type": kind, kind: text}]}}
        for role, kind, text in said * 100
    ]
    (tmp_path / "claude.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "empty.jsonl").write_text(json.dumps({"type": "summary", "leafUuid": "x"}))
    files = [str(recorded), str(tmp_path / "claude.jsonl"), str(tmp_path / "empty.jsonl")]
    assert main(["replay", *files, "--strategy", "off", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["conversations"], document["model"], document["currency"]) == (3, "claude-opus-4-8", "USD")
    assert printed.err == f"condenser: {files[2]}: holds no conversation\n"
    assert main(["replay", files[2]]) == 2


def test_a_file_that_cannot_be_read_exits_2_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"messages": [')
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"condenser: {path}: line 1: is not JSON")


def test_html_is_a_page_with_plots_that_stands_alone(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    assert main(["replay", str(recorded), "--strategy", "recent", "--window", "1024", "--html", str(report)]) == 0
    assert main(["replay", str(recorded), "--strategy", "off", "--html", str(tmp_path)]) == 1
    assert "Is a directory" in capsys.readouterr().err
    text = report.read_text("utf-8")
    assert text.count("<summary>Table: Tokens sent") == 2
    assert "window 1,024" in text
    assert text.count('<svg viewBox="0 0 760') == text.count("<summary>Table: ")


def test_a_terminal_gets_a_progress_bar(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, device = os.openpty()
    with os.fdopen(device, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        assert main(["replay", str(recorded), "--strategy", "recent", "--window", "1024"]) == 0
    assert b"] 2/6 recent" in os.read(screen, 4_096)
    os.close(screen)


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
    off, default, _ = json.loads(capsys.readouterr().out)["strategies"]
    assert (default["requests"], default["degraded"], default["overflows"]) == (off["requests"], 0, 0)
    assert default["condensations"] > 0
