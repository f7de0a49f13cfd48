"""aider under `wrap`, without a setting: both protocols go through the proxy to the addresses that it had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.guides import Guides
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.replicas import ROOT, SERVE
from tests.support.upstream import ScriptedUpstream

AIDER = shutil.which("aider")
pytestmark = pytest.mark.skipif(not AIDER, reason="aider is NOT TESTED: it is not on the path (pip aider-chat)")
PATIENCE = 200  # seconds for one run of aider, which takes about ten
QUIET = ("--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings")


def run(model: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    assert AIDER
    wrap = [sys.executable, "-c", SERVE, "wrap", "--store", "memory://", "--", AIDER]
    own = {"HOME": str(folder), "PYTHONPATH": str(ROOT), "CONDENSER_CONFIG": ""}
    return subprocess.run(
        [*wrap, "--model", model, "--message", "Say hello.", *QUIET],
        cwd=folder,
        env={**os.environ, **own, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_both_protocols_go_where_they_went_without_wrap(tmp_path: Path) -> None:
    with StrictMessages(lambda body: "Hello of one.") as one, ScriptedUpstream() as two:
        addresses = {"ANTHROPIC_BASE_URL": one.url, "OPENAI_BASE_URL": two.base_url}
        keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
        done = run("anthropic/claude-sonnet-4-5", tmp_path, **addresses, **keys)
        assert (done.returncode, "Hello of one." in done.stdout) == (0, True), done
        assert one.journal.to(MESSAGES)
        assert not two.journal.to("/v1/chat/completions")
        done = run("openai/gpt-4o", tmp_path, **addresses, **keys)
        assert (done.returncode, "condenser receipt" in done.stderr) == (0, True), done
        assert two.journal.to("/v1/chat/completions")


def test_its_guide_runs(guide: Guides) -> None:
    guide("aider", yaml=".aider.model.settings.yml")
