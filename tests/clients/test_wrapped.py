"""`condenser wrap` and `watch`: unchanged programs with official SDKs, signals, exit statuses, receipt and rows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.messages_upstream import StrictMessages
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.replicas import ROOT, SERVE
from tests.support.signals import BOUND
from tests.support.upstream import ScriptedUpstream

RULE = "Never water the beds at noon."
OPENAI = """
import json, sys
from openai import OpenAI
messages = [{"role": "user", "content": sys.argv[1]}]
with OpenAI(api_key="k", max_retries=0) as client:
    for turn in range(12):
        client.chat.completions.create(model="scripted-1", messages=messages)
        messages += [{"role": "assistant", "content": f"Bed {turn} is planned. " * 90}]
        messages += [{"role": "user", "content": f"Now plan bed {turn + 1}."}]
print("planned")
"""
ANTHROPIC = """
from anthropic import Anthropic
with Anthropic(api_key="k", max_retries=0) as client:
    said = client.messages.create(model="claude-x", max_tokens=64, messages=[{"role": "user", "content": "Hi"}])
print(said.content[0].text)
"""
WAITS = """
import signal, sys
signal.signal(int(sys.argv[1]), lambda number, frame: sys.exit(40 + number))
print("ready", flush=True)
signal.pause()
"""
PRICES = '[[models]]\nmatch = "scripted-1"\nwindow = 4096\nprices = { input = 2.0, cached_input = 0.5, output = 8.0 }\n'


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/s.db"
    else:
        with RedisServer() as server:
            yield server.url


def command(upstream: str, store: str, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    serving = ["wrap", "--upstream", upstream, "--store", store, *options]
    return [sys.executable, "-c", SERVE, *serving, "--", *words]


def wrapped(upstream: str, store: str, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    whole = command(upstream, store, *words, options=options)
    return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=4 * BOUND, check=False)


@contextmanager
def waiting(upstream: str, number: signal.Signals) -> Iterator[subprocess.Popen[str]]:
    """A wrapped program that ends with 40 and the number of a signal when it gets that."""
    words = command(upstream, "memory://", sys.executable, "-c", WAITS, str(int(number)))
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def line(receipt: str, title: str) -> str:
    """What a receipt says under a title."""
    return next(each for each in receipt.splitlines() if each.strip().startswith(title)).strip().removeprefix(title)


def test_an_openai_program_runs_unchanged_and_the_receipt_says_what_was_saved_and_kept(
    upstream: ScriptedUpstream, store: str, tmp_path: Path
) -> None:
    config = tmp_path / "condenser.toml"
    config.write_text(PRICES)
    options = ("--config", str(config), "--strategy", "extract")
    done = wrapped(upstream.base_url, store, sys.executable, "-c", OPENAI, RULE, options=options)
    assert (done.returncode, done.stdout) == (0, "planned\n"), done.stderr
    assert line(done.stderr, "requests").startswith("       12, ")
    assert "(" in line(done.stderr, "condensations")
    assert not line(done.stderr, "tokens saved").strip().startswith("0")
    assert "word for word" in line(done.stderr, "kept")
    assert f"“{RULE}”" in done.stderr
    assert "spent; at least" in line(done.stderr, "money")


def test_the_command_of_the_receipt_shows_the_session_afterwards(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    done = wrapped(upstream.base_url, store, sys.executable, "-c", OPENAI, RULE)
    shown = line(done.stderr, "look").split()
    assert shown[:4] == ["condenser", "wrap", "--store", store]
    words = [sys.executable, "-c", SERVE, *shown[shown.index("--") + 2 :]]
    after = wrapped(upstream.base_url, store, *words)
    assert (after.returncode, RULE in after.stdout) == (0, True), after.stderr


def test_a_program_behind_a_web_proxy_still_finds_the_proxy(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    ended = wrapped(upstream.url, "memory://", sys.executable, "-c", OPENAI, "Plan the beds.")
    assert (ended.returncode, ended.stdout) == (0, "planned\n"), ended.stderr


def test_an_anthropic_program_runs_unchanged() -> None:
    with StrictMessages(lambda body: "Grüezi") as upstream:
        done = wrapped(f"{upstream.url}/v1", "memory://", sys.executable, "-c", ANTHROPIC)
    assert (done.returncode, done.stdout) == (0, "Grüezi\n"), done.stderr
    assert line(done.stderr, "requests").strip() == "1"
    assert "nothing is left" in line(done.stderr, "look")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_command_and_its_exit_status_comes_back(
    number: signal.Signals, upstream: ScriptedUpstream
) -> None:
    with waiting(upstream.base_url, number) as process:
        process.send_signal(number)
        assert process.wait(2 * BOUND) == 40 + number


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_the_exit_status_is_that_of_the_command(code: str, status: int, upstream: ScriptedUpstream) -> None:
    done = wrapped(upstream.base_url, "memory://", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == "condenser: the command sent no request through the proxy\n"


def test_a_command_that_is_not_there_is_said_as_a_shell_would(upstream: ScriptedUpstream) -> None:
    done = wrapped(upstream.base_url, "memory://", "no-such-command-here")
    assert done.returncode == 127
    assert done.stderr.startswith("condenser: no-such-command-here: no such file or directory\n")


def test_watch_shows_a_row_for_each_live_conversation_in_plain_lines_where_there_is_no_terminal(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    watching = [sys.executable, "-c", SERVE, "watch"]
    script = (
        f"{OPENAI}\nimport subprocess\nsubprocess.run({[*watching, '--once']!r})\n"
        f"watch = subprocess.Popen({watching!r}, stdout=subprocess.PIPE, text=True)\n"
        "print('LINE', watch.stdout.readline())\nwatch.terminate(); watch.wait()"
    )
    options = ("--strategy", "extract", "--window", "4096")
    store = f"sqlite:///{tmp_path}/s.db"
    done = wrapped(upstream.base_url, store, sys.executable, "-c", script, RULE, options=options)
    _, title, row, *rest = done.stdout.splitlines()
    assert title.split() == ["SESSION", "MODEL", "WINDOW", "ACTION", "REQUESTS", "CONDENSED", "SAVED", "COST", "IDLE"]
    assert "scripted-1" in row
    assert "of 4,096" in row
    (plain,) = [each for each in rest if each.startswith("LINE")]
    assert "scripted-1" in plain
    assert "\x1b" not in done.stdout
    assert json.dumps(RULE) not in done.stdout
