"""`wrap --handles`: a real agent opens the handle of a line by the MCP server that it got, which is given no key."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import parse
from proxy.commands.mcp import made
from proxy.commands.running import note_at
from tests.clients.guides import COMMANDS, KEYS, run_shell
from tests.clients.test_mcp import answers
from tests.proxy.command_line import run
from tests.support import wire
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, tool_use
from tests.support.recording import CHAT
from tests.support.replicas import await_answer, replica
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message
from tests.support.upstream import ScriptedUpstream

SERVER = "mcp__condenser"
LINE = re.compile(r"left out: .{0,300}?handle (?!1a2b3c4d)([0-9a-f]{8})")  # not that of our own explanation
SUBSCRIBED = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-tests"}
MOST = 60  # steps in which something must have been left out
Item = dict[str, Any]


class Curious:
    """A model that has the shell count until a line says what was left out, has its handle opened, and is done."""

    def __init__(self, server: str = SERVER) -> None:
        self.server, self.step, self.opens = server, 0, ""

    def __call__(self, body: Mapping[str, Any]) -> Sequence[Item] | str:
        if not body.get("tools"):
            return "A title."
        said = json.dumps(body.get("messages") or body["input"])
        if not self.opens and (found := LINE.search(said)):
            self.opens = found[1]
            return [self.expand({"handle": self.opens})]
        self.step += 1
        return [self.says("All is counted.") if self.opens or self.step > MOST else self.counts(self.step)]

    def says(self, words: str) -> Item:
        return text(words)

    def expand(self, arguments: Item) -> Item:
        return tool_use(f"{self.server}__expand", arguments)

    def counts(self, step: int) -> Item:
        return tool_use("Bash", {"command": f"seq {step}000 {step}900", "description": "Counts"})


class CuriousCodex(Curious):
    def says(self, words: str) -> Item:
        return message(words)

    def expand(self, arguments: Item) -> Item:
        return {**function_call("expand", arguments), "namespace": self.server}

    def counts(self, step: int) -> Item:
        return function_call("exec_command", {"cmd": f"seq {step}000 {step}900"})


def wrapped(upstream: ScriptedUpstream, folder: Path, words: str, **variables: str) -> None:
    options = f"--handles --window 64000 --strategy mask --upstream {upstream.base_url}"
    done = run_shell(f"condenser wrap {options} -- {words}", folder, IS_SANDBOX="1", **variables)
    assert "All is counted." in done.stdout
    assert "condenser receipt" in done.stderr


@pytest.mark.skipif(not COMMANDS["claude"], reason="Claude Code is NOT TESTED: needs npm and `make setup`")
def test_claude_code_with_a_subscription_reads_back_what_was_left_out(tmp_path: Path) -> None:
    options = "--model claude-opus-4-8 --dangerously-skip-permissions --max-turns 99"
    with StrictMessages(Curious()) as upstream:
        wrapped(upstream, tmp_path, f"claude -p 'Count in steps.' {options}", **SUBSCRIBED)
        asked = [each.json()["messages"] for each in upstream.journal.to(MESSAGES)]
        assert not any(each.header("x-api-key") for each in upstream.journal.to(MESSAGES))
    assert f"{SERVER}__expand\\n{SERVER}__search_memory" in json.dumps(asked[0])  # the schemas come when it asks
    assert is_original(asked[-1][-3:])


@pytest.mark.skipif(not COMMANDS["codex"], reason="the Codex CLI is NOT TESTED: needs npm and `make setup`")
def test_codex_reads_back_what_was_left_out(tmp_path: Path) -> None:
    with StrictResponses(CuriousCodex()) as upstream:
        options = "-m gpt-5.2-codex --dangerously-bypass-approvals-and-sandbox"
        wrapped(upstream, tmp_path, f"codex exec {options} 'Count in steps.'")
        asked = [each.json() for each in upstream.journal.to(RESPONSES)]
    (listed,) = [tool for tool in asked[-1]["tools"] if tool.get("name") == SERVER]
    assert {tool["name"] for tool in listed["tools"]} == {"expand", "search_memory"}
    assert is_original(asked[-1]["input"][-2:])


def is_original(newest: Sequence[Item]) -> bool:
    """Whether the newest result is what a command printed, and not the line in its place."""
    return re.search(r"000\\+n\d+001\\+n", json.dumps(newest)) is not None


ASKS = """
import json, os, sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from proxy.commands.running import note_at

url = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
def asked(path, body, bearer, **headers):
    told = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json", **headers}
    try:
        with urlopen(Request(url + path, json.dumps(body).encode() if body else None, told)) as answer:
            answer.read()
            return answer.status
    except HTTPError as refused:
        return refused.code

said = [{"role": "user", "content": "Plan my beds."}]
asked("/v1/chat/completions", {"model": "m", "messages": said}, "k", **{"X-Condenser-Session": sys.argv[1]})
token = note_at(url).handles
print(*(asked("/_condenser/own/search", {"query": "beds", "session": name}, token) for name in ("one", "two")))
print(*(asked(path, None, token) for path in ("/_condenser/sessions", "/_condenser/stats")), end=" ")
print(asked("/_condenser/own/search", {"query": "beds", "session": sys.argv[1]}, token[:-1] + "?"))
"""


def test_under_wrap_the_token_reads_what_the_run_has_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    with ScriptedUpstream() as upstream:
        options = f"--store sqlite:///{tmp_path}/s.db --upstream {upstream.base_url}"
        runs = [
            run_shell(f"condenser wrap {options} -- {sys.executable} {tmp_path}/asks.py {name}", tmp_path).stdout
            for name in ("one", "two")
        ]
    assert runs == ["200 404\n401 401 403\n", "404 200\n401 401 403\n"]


@pytest.mark.parametrize("single", ["true", "false"])
def test_only_a_proxy_of_one_person_needs_no_key_to_be_read(single: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedUpstream() as upstream,
        replica(upstream.base_url, "memory://", "off", 8_000, CONDENSER_SINGLE_USER=single) as (
            url,
            it,
        ),
    ):
        await_answer(url, it)
        note = note_at(url)
        assert note is not None
        assert bool(note.handles) == (single == "true")
        (file,) = Path(os.environ.get("TMPDIR") or "/tmp").glob(f"condenser-{os.getuid()}/{it.pid}.json")
        assert file.stat().st_mode & 0o777 == 0o600
        asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Plan my beds."}]}).encode()
        told = [*wire.JSON, ("Authorization", "Bearer k"), ("X-Condenser-Session", "s")]
        assert wire.request(url, "POST", CHAT, asked, told).status == 200
        for name in KEYS:
            monkeypatch.delenv(name, raising=False)
        ((failed, said),) = answers(made(parse(["mcp", "--url", url])), ("search_memory", {"query": "beds"}))
        assert (failed, "Plan my beds." in said) == (single == "false", single == "true")


def test_a_command_that_registers_its_own_servers_is_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "wrap", "--store", "memory://", "--handles", "--", "echo", "done")
    assert (code, out) == (2, "")
    assert "--handles is for claude and codex" in err
