"""The plugin of Claude Code, from its folder: a real Claude Code opens a handle, and its status line tells the sums."""

import json
import re
import shlex
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from proxy import VERSION
from tests.clients.guides import COMMANDS, run_shell
from tests.clients.test_handles import SUBSCRIBED, Curious, is_original
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.replicas import ROOT

PLUGIN = ROOT / "deploy" / "claude-code"
SERVER = "mcp__plugin_condenser_condenser"
pytestmark = pytest.mark.skipif(not COMMANDS["claude"], reason="Claude Code is NOT TESTED: needs npm and `make setup`")


def test_it_has_the_version_of_the_program_and_is_valid_and_installed_from_its_folder(tmp_path: Path) -> None:
    assert json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text("utf-8"))["version"] == VERSION
    # With a key it would ask the vendor how many tokens the plugin has.
    script = f"unset ANTHROPIC_API_KEY; claude plugin validate {PLUGIN}; claude plugin marketplace add {PLUGIN}"
    said = run_shell(f"{script}; claude plugin install condenser@condenser; claude plugin details condenser", tmp_path)
    assert "Validation passed" in said.stdout
    assert re.search(r"MCP servers \(1\) +condenser", said.stdout)


def test_a_real_claude_code_opens_a_handle_and_the_status_line_tells_what_was_saved(tmp_path: Path) -> None:
    session, status = str(uuid4()), f"{sys.executable} {PLUGIN}/status_line.py"
    claude = f"claude -p 'Count in steps.' --plugin-dir {PLUGIN} --session-id {session} --max-turns 99"
    told = shlex.quote(json.dumps({"session_id": session}))
    words = f"{claude} --model claude-opus-4-8 --dangerously-skip-permissions; printf %s {told} | {status}"
    options = f"--window 64000 --strategy mask --store sqlite:///{tmp_path}/s.db"
    with StrictMessages(Curious(SERVER)) as upstream:
        command = f"condenser wrap {options} --upstream {upstream.base_url} -- /bin/sh -c {shlex.quote(words)}"
        printed = run_shell(command, tmp_path, IS_SANDBOX="1", **SUBSCRIBED).stdout
        asked = [each.json()["messages"] for each in upstream.journal.to(MESSAGES)]
    assert is_original(asked[-1][-3:])
    found = re.search(r"condenser: (\d+) requests(?:, [\d,]+ rescued)?, ([\d,]+) tokens saved", printed)
    assert found is not None, printed
    assert int(found[1]) > 3
    assert int(found[2].replace(",", "")) > 0


def test_without_a_proxy_the_status_line_is_empty(tmp_path: Path) -> None:
    words = f'echo \'{{"session_id": "s"}}\' | {sys.executable} {PLUGIN}/status_line.py'
    assert run_shell(words, tmp_path, ANTHROPIC_BASE_URL="http://127.0.0.1:9").stdout == ""
