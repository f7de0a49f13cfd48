"""`condenser prove` with real coding agents before scripted models: pairs of runs, each in a copy of the folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import test_claude_code, test_codex
from tests.proxy.command_line import run
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, tool_use
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message

CLAUDE, CODEX = test_claude_code.CLAUDE, test_codex.CODEX
STEPS = 14
TASK = '[[tasks]]\nprompt = "Count to the end, and write down the last number."\ncheck = "grep -qx 14 last.txt"\n'
Prove = Callable[..., dict[str, Any]]


class Stepping:
    """The next shell command of a model: they print much, and the last one writes what is asked for; then comes ""."""

    step = 0

    def __call__(self, history: object, result: str) -> str:
        """A history without a result is that of another run."""
        self.step = self.step + 1 if result in json.dumps(history) else 1
        if self.step > STEPS:
            return ""
        return f"seq {self.step} {self.step + 900}" if self.step < STEPS else f"echo {STEPS} > last.txt"


@pytest.fixture
def proving(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Prove:
    """Runs one pair in a home and a folder of the test's own; returns its figures."""
    home = tmp_path / "home"
    for folder in (home, tmp_path / "work"):
        folder.mkdir()
    (tmp_path / "tasks.toml").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": str(home), "CODEX_HOME": str(home), "CONDENSER_CONFIG": ""}.items():
        monkeypatch.setenv(name, value)

    def prove(upstream: str, window: int, *words: str) -> dict[str, Any]:
        options = ("--folder", "work", "--repeat", "1", "--timeout", "200", "--window", str(window), "--json")
        given = ("--tasks", "tasks.toml", "--upstream", upstream, "--strategy", "mask+extract", *options)
        code, out, err = run(capsys, "prove", *given, "--", *words)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return prove


def assert_proved(found: dict[str, Any]) -> None:
    assert (found["pairs"], found["condensed"], found["silent"]) == (1, 1, 0)
    assert found["statuses"] == {"0": 2}
    assert (found["solved"]["without"], found["solved"]["with"]) == (1, 1)
    assert found["tokens"]["with"] < found["tokens"]["without"]


@pytest.mark.skipif(not CLAUDE, reason="Claude Code is NOT TESTED: needs npm and `make setup`")
def test_claude_code_is_proved(proving: Prove, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: Mapping[str, Any]) -> Sequence[dict[str, Any]] | str:
        if test_claude_code.is_own(body):
            return "A title."
        command = stepping(body["messages"], "tool_result")
        return [tool_use("Bash", {"command": command, "description": "Counts"})] if command else [text("Done.")]

    stepping = Stepping()
    for name, value in {"ANTHROPIC_API_KEY": "k", "IS_SANDBOX": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    with StrictMessages(answer) as upstream:
        options = ("--model", "claude-opus-4-8", "--dangerously-skip-permissions")
        assert_proved(proving(f"{upstream.url}/v1", 48_000, *CLAUDE, *options, "-p"))
        assert upstream.refusals == []
        assert len(upstream.journal.to(MESSAGES)) >= 2 * STEPS


@pytest.mark.skipif(not CODEX, reason="the Codex CLI is NOT TESTED: needs npm and `make setup`")
def test_codex_is_proved(proving: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: Mapping[str, Any]) -> Sequence[dict[str, Any]] | str:
        if test_codex.is_own(body):
            return "<summary>Counted.</summary>"
        command = stepping(body["input"], "function_call_output")
        return [function_call("exec_command", {"cmd": command})] if command else [message("Done.")]

    stepping = Stepping()
    (tmp_path / "home" / "config.toml").write_text(test_codex.COMMON)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("CODEX_API_KEY", "k")
    with StrictResponses(answer) as upstream:
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        assert_proved(proving(upstream.base_url, 24_000, *CODEX, "exec", *options))
        assert upstream.refusals == []
        assert len(upstream.journal.to(RESPONSES)) >= 2 * STEPS
