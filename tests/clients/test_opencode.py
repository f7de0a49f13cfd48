"""opencode under `wrap`, without a setting: both protocols go through the proxy to the addresses that it had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.guides import Guides
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.replicas import ROOT, SERVE
from tests.support.responses_upstream import RESPONSES, StrictResponses

OPENCODE = shutil.which("opencode")
pytestmark = pytest.mark.skipif(not OPENCODE, reason="opencode is NOT TESTED: it is not on the path (npm opencode-ai)")
PATIENCE = 200  # seconds for one run of opencode, which takes about five


def run(model: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    assert OPENCODE
    wrap = [sys.executable, "-c", SERVE, "wrap", "--store", "memory://", "--", OPENCODE]
    own = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT), "CONDENSER_CONFIG": ""}
    return subprocess.run(
        [*wrap, "run", "-m", model, "Say hello."],
        cwd=folder,
        env={**os.environ, **own, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_both_protocols_go_where_they_went_without_wrap(tmp_path: Path) -> None:
    with StrictMessages(lambda body: "Hello of one.") as one, StrictResponses(lambda body: "Hello of two.") as two:
        addresses = {"ANTHROPIC_BASE_URL": one.url, "OPENAI_BASE_URL": f"{two.url}/v1"}
        keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
        for model, says in (("anthropic/claude-opus-4-5", "Hello of one."), ("openai/gpt-5.2", "Hello of two.")):
            done = run(model, tmp_path, **addresses, **keys)
            assert (done.returncode, says in done.stdout, "condenser receipt" in done.stderr) == (0, True, True), done
        assert one.journal.to(MESSAGES)
        assert two.journal.to(RESPONSES)


def test_its_guide_runs(guide: Guides) -> None:
    guide("opencode", json="opencode.json")
