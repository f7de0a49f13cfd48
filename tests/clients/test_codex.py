"""The Codex CLI through the proxy: forty rounds in a window of 32,000 tokens, run as its guide says.

The model is scripted, and each of its calls is run by Codex in a folder of the test's own.
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
from tests.clients import agents
from tests.clients.guides import Guides
from tests.http.test_responses import SUMMARY
from tests.support.proxy import Proxy, running_proxy
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message, reasoning

CODEX = agents.command("codex", "@openai/codex/bin/codex.js")
pytestmark = pytest.mark.skipif(not CODEX, reason="the Codex CLI is NOT TESTED: needs npm and `make setup`")

WINDOW, ROUNDS = 32_000, 40
TASK = "Review all modules in src one after the other. Keep rule ALPHA-77 in mind."
COMMON = 'model = "gpt-5.2-codex"\ncheck_for_update_on_startup = false\n\n[analytics]\nenabled = false\n'
METADATA = "x-codex-turn-metadata"
PATIENCE = 200  # seconds for one run of Codex, which takes about seven


class Reviewer:
    """A model that has one module read after another, sometimes two in one reply, and then is done."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.rounds, self.step = rounds, 0

    def __call__(self, body: Mapping[str, Any]) -> Sequence[dict[str, Any]] | str:
        if is_own(body):
            return f"<summary>{SUMMARY}</summary>"
        if asks_to_compact(body):
            return f"Some parts are reviewed, and ALPHA-77 holds in each of them.\n{SUMMARY}"
        self.step += 1
        if self.step > self.rounds:
            return [reasoning("Done."), message("All is reviewed.")]
        calls = [_read(self.step)] if self.step % 4 else [_read(self.step), _read(1)]
        return [reasoning(f"Thinking of part {self.step}."), message(f"I read part {self.step}."), *calls]


def _read(part: int) -> dict[str, Any]:
    return function_call("exec_command", {"cmd": f"cat src/part_{part}.py"})


def is_own(body: Mapping[str, Any]) -> bool:
    """Whether the proxy asks here on its own account; Codex names its thread in each request."""
    return "prompt_cache_key" not in body


def asks_to_compact(body: Mapping[str, Any]) -> bool:
    return "CONTEXT CHECKPOINT COMPACTION" in json.dumps(body["input"][-1])


def run(proxy: Proxy, folder: Path, common: str = COMMON, **provider: object) -> str:
    """The last words of a run of Codex with its own settings."""
    named = {"name": "Condenser", "base_url": proxy.base_url, "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
    members = [f"{key} = {json.dumps(value)}" for key, value in {**named, **provider}.items()]
    settings = 'model_provider = "condenser"\n' + common + "\n[model_providers.condenser]\n" + "\n".join(members)
    return run_codex(folder, settings)


def run_codex(folder: Path, settings: str) -> str:
    """The last words of Codex in a folder with these settings."""
    home, work = folder / "home", folder / "work"
    (work / "src").mkdir(parents=True)
    home.mkdir()
    for part in range(1, ROUNDS + 1):
        notes = "\n".join(f"# note {line}: keep the invariant of part {part}." for line in range(100))
        (work / "src" / f"part_{part}.py").write_text(f"PART = {part}\n{notes}\n")
    (home / "config.toml").write_text(f"{settings}\n")
    last = folder / "last.txt"
    # The folder is the test's own, and the commands are those of the script above.
    options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-C", str(work), "-o", str(last)]
    done = subprocess.run(
        [*CODEX, "exec", *options, TASK],
        env={**os.environ, "CODEX_HOME": str(home), "OPENAI_API_KEY": "k"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return last.read_text()


@pytest.mark.parametrize(
    ("strategy", "provider"), [("mask+half-window", {"supports_websockets": True}), ("native", {})]
)
def test_forty_rounds_end_well_and_codex_compacts_nothing_itself(
    strategy: str, provider: dict[str, Any], tmp_path: Path
) -> None:
    """A Codex that would use a web socket is refused it, and goes on over HTTP."""
    with (
        StrictResponses(Reviewer(), window=WINDOW) as upstream,
        running_proxy(upstream.url, strategy=strategy, window=WINDOW) as proxy,
    ):
        assert run(proxy, tmp_path, **provider) == "All is reviewed."
        asked = proxy.journal.to(RESPONSES)
        upgrades = [("GET", 426)] if provider else []
        assert [(each.method, each.status) for each in asked] == [*upgrades, *[("POST", 200)] * (ROUNDS + 1)]
        asked = asked[len(upgrades) :]
        assert upstream.refusals == []
        assert "condensed" in [exchange.response_header("x-condenser-action") for exchange in asked]
        assert len({exchange.response_header("x-condenser-session") for exchange in asked}) == 1
        assert {exchange.response_header("x-condenser-session-source") for exchange in asked} == {"thread-id"}
        views = [body for exchange in upstream.journal.to(RESPONSES) if not is_own(body := exchange.json())]
        assert all("ALPHA-77" in json.dumps(view["input"]) for view in views)
    assert_the_rollout_holds_what_was_sent(tmp_path, asked[-1].json())


def assert_the_rollout_holds_what_was_sent(folder: Path, last: Mapping[str, Any]) -> None:
    """`replay` reads the file that Codex keeps as the requests that it made."""
    (file,) = (folder / "home" / "sessions").rglob("rollout-*.jsonl")
    (kept,) = load(file)
    ends = list(request_ends(kept))
    assert len(ends) == ROUNDS + 1
    assert kept.model == "gpt-5.2-codex"
    assert kept.members["instructions"].startswith("You are a coding agent running in the Codex CLI")
    read, sent = ([kept.endpoint.dialect.read(item) for item in some] for some in (kept.messages, last["input"]))
    assert read[: ends[-1]] == sent[1:]  # it sends the instructions as an item of their own


@pytest.mark.parametrize("name", ["Condenser", "OpenAI"], ids=["by a prompt", "by a trigger that is refused"])
def test_a_codex_that_compacts_by_itself_stays_on_its_branch(name: str, tmp_path: Path) -> None:
    common = f"model_auto_compact_token_limit = 20000\n{COMMON}"
    with (
        StrictResponses(Reviewer(ROUNDS // 2), lacks=["endpoint", "trigger"]) as upstream,
        running_proxy(upstream.url, strategy="mask+extract", window=2 * WINDOW) as proxy,
    ):
        assert run(proxy, tmp_path, common, name=name) == "All is reviewed."
        asked = proxy.journal.to(RESPONSES)
        compactions = [each for each in asked if '"request_kind":"compaction"' in (each.header(METADATA) or "")]
        reasons = {each.response_header("x-condenser-reason") for each in compactions}
        branches = {(each.response_header("x-condenser-branch") or "").rstrip("+") for each in asked}
        assert len(compactions) >= 2
        assert reasons == ({"client-compaction"} if name == "Condenser" else {None})
        assert branches == {"main"}
        assert len(upstream.refusals) == (name == "OpenAI")


def test_its_guide_runs_and_under_wrap_codex_goes_past_nobody(guide: Guides) -> None:
    guide("codex", toml=".codex/config.toml")
    asked = guide.upstream.journal.to(RESPONSES)
    assert {(each.method, each.header("authorization")) for each in asked} == {("POST", "Bearer sk-tests")}
