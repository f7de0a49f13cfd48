"""The bill of real coding agents under `condenser wrap`, by the log of the server that they talk to.

Claude Code and the Codex CLI, where `make setup` has installed them, read one file after another because a scripted
model says so: without condensing (`--strategy off`), with no option, and with `--economy auto`. The server counts all
prompts itself, and what a prompt cache of the vendor's form would have served. The bill is that of all prompts, own
calls too, at the bundled prices, beside that of `off`: with a cache, and as if each token were fresh. `told wrong`
names the figures of the receipt, `status`, the overview and the list of sessions that are not those of the server's
log. `net` is what the receipt says that condensing saved, beside what the bill fell by.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from proxy.tokens.models import ModelTable
from strategies.core.economics import Prices
from tests.clients import agents
from tests.support.messages_upstream import MESSAGES, StrictMessages, text, tool_use
from tests.support.recording import Exchange
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message

ROOT = Path(__file__).resolve().parents[1]
WAYS = {"off": ("--strategy", "off"), "no option": (), "`--economy auto`": ("--economy", "auto")}
TASK = "Review all modules in src one after the other. Never rename a public function."
PATIENCE = 560  # seconds for one run
_COMMANDS = {
    "claude": agents.command("claude", "@anthropic-ai/claude-code/cli-wrapper.cjs"),
    "codex": agents.command("codex", "@openai/codex/bin/codex.js"),
}
_SERVE = "import sys; from proxy.cli import main; sys.exit(main(sys.argv[1:]))"
_SPENT = re.compile(r"USD ([\d.,]+) spent")
_NET = re.compile(r"condensing (?:saved USD ([\d.,]+) net|cost USD ([\d.,]+) more)")
_SENTENCE = re.compile(r"([\d,]+) of ([\d,]+) requests fitted only because they were condensed; ([\d,]+) failed")
_LOOK = """{agent} "$@"; code=$?; condenser='{python} -m proxy'
$condenser status --json > {folder}/status.json
$condenser sessions list --json > {folder}/sessions.json
$condenser dashboard --no-open | {python} -c 'import re, sys, urllib.request as r
link = re.search("http[^ \\n]+", sys.stdin.read())[0]
print(r.build_opener(r.HTTPCookieProcessor()).open(link, timeout=60).read().decode())' > {folder}/overview.html
exit $code
"""
"""What is run under `wrap`: the agent, and then a look at what the proxy says of it, while it is there."""
_SUMMARY = "<summary>The parts were read one after the other, and nothing was wrong with them.</summary>"


@dataclass(frozen=True)
class Agent:
    model: str
    path: str  # where its requests go
    upstream: Callable[[Callable[[Mapping[str, Any]], Any]], StrictMessages | StrictResponses]
    step: Callable[[str], Any]  # the reply that has a command run
    words: Sequence[str]
    is_turn: Callable[[Mapping[str, Any]], bool]  # whether a request is one of the task, not a title or an own call
    usage: Callable[[bytes], tuple[int, int, int, int]]
    """The fresh, written and cached tokens of a prompt, and those of its reply, in the bytes of a reply."""


def _of_messages(sent: bytes) -> tuple[int, int, int, int]:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    fresh, written, cached = (_number(name, sent) for name in names)
    return fresh, written, cached, _number("output_tokens", sent, last=True)


def _of_responses(sent: bytes) -> tuple[int, int, int, int]:
    total, cached = _number("input_tokens", sent), _number("cached_tokens", sent)
    written = _number("cache_write_tokens", sent)
    return total - cached - written, written, cached, _number("output_tokens", sent)


def _number(name: str, sent: bytes, *, last: bool = False) -> int:
    found = re.findall(rf'"{name}":\s*(\d+)'.encode(), sent)
    return int(found[-1 if last else 0]) if found else 0


AGENTS = {
    "claude": Agent(
        "claude-opus-4-8",
        MESSAGES,
        StrictMessages,
        lambda command: [text("I read on."), tool_use("Bash", {"command": command, "description": "Reads"})],
        ("-p", TASK, "--model", "claude-opus-4-8", "--dangerously-skip-permissions", "--max-turns", "1000"),
        lambda body: bool(body.get("tools")),
        _of_messages,
    ),
    "codex": Agent(
        "gpt-6-sol",
        RESPONSES,
        StrictResponses,
        lambda command: [message("I read on."), function_call("exec_command", {"cmd": command})],
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        lambda body: "prompt_cache_key" in body,
        _of_responses,
    ),
}
_CODEX = """model = "gpt-6-sol"
model_context_window = 1050000
check_for_update_on_startup = false

[analytics]
enabled = false
"""


def measure(rounds: int = 30, lines: int = 110, agent: str = "claude codex") -> list[dict[str, Any]]:
    """A row for each agent and way; each round reads a file of so many lines. Some minutes."""
    rows = []
    for name in agent.split():
        if not _COMMANDS[name]:
            continue
        logs = {way: played(AGENTS[name], name, options, rounds, lines) for way, options in WAYS.items()}
        rows += [{"agent": name, "way": way, **row} for way, row in _rows(AGENTS[name], logs)]
    return rows


class Figures(NamedTuple):
    """What a page or a command says of a run, or the server's log."""

    requests: int
    failed: int
    rescued: int
    money: float  # replies too
    prompts: int = 0  # in tokens as the server counts them; 0 where it is not said

    def differ(self, log: Figures) -> list[str]:
        """The names of what is not as in the log; money is shown in digits that may round by one in two hundred."""
        pairs = zip(self._fields, self, log, strict=True)
        names = [name for name, said, true in pairs if name not in {"money", "prompts"} and said != true]
        names += ["prompts"] * (self.prompts not in (0, log.prompts))
        return names + ["money"] * (abs(self.money - log.money) > 0.005 * log.money)


@dataclass(frozen=True)
class Log:
    """What the server has seen, and what was printed: the receipt and, while the proxy was there, the other figures."""

    prompts: Sequence[tuple[int, int, int, int]]
    receipt: str
    said: Mapping[str, Figures]


def _rows(agent: Agent, logs: Mapping[str, Log]) -> Iterator[tuple[str, dict[str, Any]]]:
    prices = ModelTable.load(ROOT / "config" / "models.toml").prices(agent.model, time.time())
    assert prices is not None
    usual = logs["off"]
    for way, log in logs.items():
        yield (
            way,
            {
                "requests": len(log.prompts),
                "largest prompt": max(sum(each[:3]) for each in log.prompts),
                "USD": _bill(log, prices),
                "bill, cached prices": _bill(log, prices) / _bill(usual, prices),
                "bill, no cache": sum(sum(each[:3]) for each in log.prompts)
                / sum(sum(each[:3]) for each in usual.prompts),
                "condensations": _told(log.receipt, "condensations"),
                "offered": "yes" if "--economy auto --" in log.receipt else "no",
                "net, told": _net(log.receipt),
                "net, by the logs": _bill(usual, prices) - _bill(log, prices),
                "told wrong": ", ".join(wrong(log, prices)) or "none",
            },
        )


def _bill(log: Log, prices: Prices, *, replies: bool = False) -> float:
    """What all prompts cost, in USD, and their replies."""
    parts = ((fresh + written + cached, cached, written, reply) for fresh, written, cached, reply in log.prompts)
    return sum(
        prices.of_call(prompt=prompt, cached=cached, written=written, reply=reply * replies)
        for prompt, cached, written, reply in parts
    )


def wrong(log: Log, prices: Prices) -> Iterator[str]:
    """The figures that are not those of the log. No request of these runs failed, or did not fit."""
    prompts = sum(sum(each[:3]) for each in log.prompts)
    true = Figures(len(log.prompts), 0, 0, _bill(log, prices, replies=True), prompts)
    for place, said in log.said.items():
        yield from (f"{name} of {place}" for name in said.differ(true))


def _said(receipt: str, folder: Path) -> Iterator[tuple[str, Figures]]:
    told, rescued = _told(receipt, "requests"), _int(_told(receipt, "rescued"))
    failed = _int(found[1]) if (found := re.search(r"([\d,]+) failed", told)) else 0
    yield "the receipt", Figures(_int(told), failed, rescued, _amount(_SPENT, receipt))
    sums = json.loads((folder / "status.json").read_text())["sums"]
    yield "status", _summed([sums["replica"]])
    yield "its hours", _summed(sums["data"])
    page = (folder / "overview.html").read_text()
    sentence = _SENTENCE.search(page)
    assert sentence is not None, (page, receipt)
    rescued, asked, failed = map(_int, sentence.groups())
    yield "the overview", Figures(asked, failed, rescued, _amount(_SPENT, page))
    listed = json.loads((folder / "sessions.json").read_text())["data"]
    yield "the sessions", _summed([each["totals"] for each in listed])


def _summed(sums: Sequence[Mapping[str, int]]) -> Figures:
    names = ("requests", "failed", "rescued", "cost", "prompt_tokens")
    requests, failed, rescued, cost, prompts = (sum(each.get(name, 0) for each in sums) for name in names)
    return Figures(requests, failed, rescued, cost / 1_000_000, prompts)


def _net(receipt: str) -> float:
    found = _NET.search(receipt)
    return 0.0 if found is None else _float(found[1]) if found[1] else -_float(found[2])


def _amount(pattern: re.Pattern[str], text: str) -> float:
    found = pattern.search(text)
    return _float(found[1]) if found else 0.0


def _float(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def _int(text: str) -> int:
    """The number with which a text begins."""
    return int(text.split(maxsplit=1)[0].rstrip(",;").replace(",", ""))


def _told(receipt: str, title: str) -> str:
    found = (line.strip().removeprefix(title) for line in receipt.splitlines() if line.strip().startswith(title))
    return next(found, "-").strip()


def played(agent: Agent, name: str, options: Sequence[str], rounds: int, lines: int) -> Log:
    """One run of an agent in a folder of its own."""
    steps = iter(range(1, rounds + 1))

    def script(body: Mapping[str, Any]) -> Any:
        if not agent.is_turn(body):
            return _SUMMARY
        part = next(steps, None)
        return "All is reviewed." if part is None else agent.step(f"cat src/part_{part}.py")

    with TemporaryDirectory() as place, agent.upstream(script) as upstream:
        folder = Path(place)
        work, home = folder / "work", folder / "home"
        (work / "src").mkdir(parents=True)
        home.mkdir()
        for part in range(1, rounds + 1):
            (work / "src" / f"part_{part}.py").write_text("".join(_source(part, lines)))
        (home / "config.toml").write_text(_CODEX)
        (home / "auth.json").write_text('{"OPENAI_API_KEY": "k"}')
        # `wrap` knows an agent by its name.
        command = folder / name
        names = {"agent": shlex.join(_COMMANDS[name]), "python": sys.executable, "folder": str(folder)}
        command.write_text("#!/bin/sh\n" + _LOOK.format_map(names))
        command.chmod(0o755)
        store = f"sqlite:///{folder}/s.db"
        words = ["wrap", "--upstream", f"{upstream.url}/v1", "--store", store, *options, "--", str(command)]
        done = subprocess.run(
            [sys.executable, "-c", _SERVE, *words, *agent.words],
            cwd=work,
            env={**_kept(), **_variables(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode or upstream.refusals or next(steps, None) is not None:
            raise SystemExit(f"{name} {options}: {done.returncode} {upstream.refusals} {done.stderr[-2_000:]}")
        asked: list[Exchange] = upstream.journal.to(agent.path)
        return Log(
            [agent.usage(each.sent) for each in asked if each.method == "POST"],
            done.stderr,
            dict(_said(done.stderr, folder)),
        )


def _kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("CONDENSER_")}


def _variables(home: Path) -> dict[str, str]:
    keys = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k", "HOME": str(home), "CODEX_HOME": str(home)}
    alone = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "1000000"}
    return {**keys, **alone, "IS_SANDBOX": "1", "CONDENSER_CONFIG": "", "PYTHONPATH": str(ROOT)}


def _source(part: int, lines: int) -> Iterator[str]:
    yield f"PART = {part}\n"
    for line in range(lines):
        yield f"def check_{part}_{line}(value: int) -> bool:  # keeps the invariant {line * part} of part {part}\n"
