"""Claude Code through the proxy: forty rounds in print mode, run as its guide says.

The model is scripted and thinks before each call; the upstream binds what it thought to all that stood before it. Each
call is run by Claude Code in a folder of the test's own. Its prompt and tools alone take about 27,000 tokens, so the
window is one of 64,000.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.commands.replaying.play import request_ends
from proxy.commands.replaying.recorded import load
from proxy.protocols.messages import MESSAGES_ENDPOINT
from tests.clients import agents
from tests.clients.guides import Guides
from tests.http.test_messages import SUMMARY
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, thinking, tool_use
from tests.support.proxy import running_proxy
from tests.support.replicas import ROOT

CLAUDE = agents.command("claude", "@anthropic-ai/claude-code/cli-wrapper.cjs")
pytestmark = pytest.mark.skipif(not CLAUDE, reason="Claude Code is NOT TESTED: needs npm and `make setup`")

WINDOW, ROUNDS = 64_000, 40
TASK = "Count in many steps. Keep rule ALPHA-77 in mind."
PATIENCE = 200  # seconds for one run of Claude Code, which takes about ten


class Counting:
    """A model that has the shell count, again and again, and then is done."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds, self.step = rounds, 0

    def __call__(self, body: Mapping[str, Any]) -> Sequence[dict[str, Any]] | str:
        if is_own(body):
            return f"<summary>{SUMMARY}</summary>"
        if "create a detailed summary of" in json.dumps(body["messages"][-2:]):
            return f"<analysis>\nI think of what was counted.\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>"
        self.step += 1
        if self.step > self.rounds:
            return [thinking("Done."), text("All is counted.")]
        command = f"seq {self.step} {self.step + 900}"
        return [thinking(f"Step {self.step}."), tool_use("Bash", {"command": command, "description": "Counts"})]


def is_own(body: Mapping[str, Any]) -> bool:
    """Whether it is no turn of the task: a call of the proxy's own, or one for a title."""
    return not body.get("tools") or (body.get("tool_choice") or {}).get("type") == "none"


def run(address: str, folder: Path, **variables: str) -> str:
    """What Claude Code prints at the end."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir()
    mine = {"HOME": str(home), "ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "k", "IS_SANDBOX": "1"}
    options = ["--model", "claude-opus-4-8", "--dangerously-skip-permissions", "--max-turns", str(2 * ROUNDS)]
    done = subprocess.run(
        [*CLAUDE, "-p", TASK, *options],
        cwd=work,
        env={
            **os.environ,
            **mine,
            **variables,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("strategy", ["mask+half-window", "native"])
def test_forty_rounds_end_well_and_claude_code_compacts_nothing_itself(strategy: str, tmp_path: Path) -> None:
    with (
        StrictMessages(Counting(), window=WINDOW, compacts=True) as upstream,
        running_proxy(upstream.url, strategy=strategy, window=WINDOW) as proxy,
    ):
        assert run(proxy.url, tmp_path) == "All is counted."
        assert upstream.refusals == []
        assert bool(upstream.compactions) is (strategy == "native")
        turns = [body for exchange in upstream.journal.to(MESSAGES) if not is_own(body := exchange.json())]
        turns = [body for body in turns if "compaction" not in body]
        assert len(turns) == ROUNDS + 1
        assert all("ALPHA-77" in json.dumps(turn["messages"]) for turn in turns)
        asked = proxy.journal.to(MESSAGES)
        assert "condensed" in [exchange.response_header("x-condenser-action") for exchange in asked]
        assert len({exchange.response_header("x-condenser-session") for exchange in asked}) == 1
    assert_the_session_file_holds_what_was_sent(tmp_path, asked[-1].json())


def test_a_claude_code_that_compacts_by_itself_stays_on_its_branch(tmp_path: Path) -> None:
    early = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000", "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "30"}
    with (
        StrictMessages(Counting(3 * ROUNDS // 4)) as upstream,
        running_proxy(upstream.url, strategy="mask+extract", window=4 * WINDOW) as proxy,
    ):
        assert run(proxy.url, tmp_path, **early) == "All is counted."
        asked = proxy.journal.to(MESSAGES)
        reasons = [exchange.response_header("x-condenser-reason") for exchange in asked]
        assert reasons.count("client-compaction") >= 2
        assert {exchange.response_header("x-condenser-branch") for exchange in asked} == {"main"}


def assert_the_session_file_holds_what_was_sent(folder: Path, last: Mapping[str, Any]) -> None:
    """`replay` reads the file that Claude Code keeps as the requests that it made."""
    (file,) = (folder / "home" / ".claude" / "projects").rglob("*.jsonl")
    (kept,) = load(file)
    assert len(list(request_ends(kept))) == ROUNDS + 1
    assert kept.model == "claude-opus-4-8"
    assert {"Bash"} <= {tool["name"] for tool in kept.tools} <= {tool["name"] for tool in last["tools"]}
    read, sent = (
        [MESSAGES_ENDPOINT.dialect.read(message) for message in some if message["role"] != "system"]
        for some in (kept.messages[:-1], last["messages"])
    )
    assert read == sent


def test_its_guide_runs(guide: Guides) -> None:
    guide("claude-code")
