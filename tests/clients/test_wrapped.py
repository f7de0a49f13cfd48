"""`condenser wrap` and `watch`: unchanged programs with official SDKs, signals, exit statuses, receipt and rows."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.commands import wrap
from proxy.commands.options import program
from tests.proxy.command_line import run
from tests.support.messages_upstream import MESSAGES, StrictMessages
from tests.support.ports import free_port
from tests.support.proxy import running_proxy
from tests.support.replicas import ROOT, SERVE
from tests.support.signals import BOUND
from tests.support.till import Till
from tests.support.upstream import ScriptedUpstream

RULE = "Never water the beds at noon."
OPENAI = """
import json, sys
from openai import OpenAI
messages = [{"role": "user", "content": content} for content in ("Plan my garden.", sys.argv[1])]
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
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(40 + number))
print("ready", flush=True)
signal.pause()
"""
ASKS = """
import os, signal, sys
signal.signal(int(sys.argv[1]), lambda number, frame: sys.exit(40 + number))
os.kill(os.getppid(), int(sys.argv[1]))
signal.pause()
"""
HANGS_UP = """
import os, signal, urllib.request
os.kill(os.getppid(), signal.SIGHUP)
with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/models") as answer:
    print(answer.status)
"""
ASKS_BOTH = """
import os, urllib.request
body = b'{"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}'
for name, path, headers in (
    ("OPENAI", "/chat/completions", {"Authorization": "Bearer k"}),
    ("ANTHROPIC", "/v1/messages", {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
):
    asked = urllib.request.Request(os.environ[name + "_BASE_URL"] + path, body, headers)
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked) as answer:
        print(answer.status)
"""
PRICES = '[[models]]\nmatch = "scripted-1"\nwindow = 4096\nprices = { input = 2.0, cached_input = 0.5, output = 8.0 }\n'


Wrap = Callable[..., tuple[int, str, str]]


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture
def wrapped(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Wrap:
    """Wraps a command in this process: exit code, standard output and standard error, with those of the command."""
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.setattr(wrap, "_is_in_foreground", lambda: False)

    def wrapping(upstream: str, store: str, *words: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        return run(capfd, "wrap", "--upstream", upstream, "--store", store, *options, "--", *words)

    return wrapping


def line(receipt: str, title: str) -> str:
    """What a receipt says under a title."""
    return next(each for each in receipt.splitlines() if each.strip().startswith(title)).strip().removeprefix(title)


def test_an_openai_program_runs_and_gets_a_receipt(upstream: ScriptedUpstream, wrapped: Wrap, tmp_path: Path) -> None:
    config, store = tmp_path / "condenser.toml", f"sqlite:///{tmp_path}/s.db"
    config.write_text(PRICES)
    options = ("--config", str(config), "--strategy", "extract")
    code, out, err = wrapped(upstream.base_url, store, sys.executable, "-c", OPENAI, RULE, options=options)
    assert (code, out) == (0, "planned\n"), err
    assert line(err, "requests").startswith("       12, ")
    assert "(" in line(err, "condensations")
    assert line(err, "saved").strip().endswith("tokens on requests that would have fitted anyway")
    assert "word for word" in line(err, "kept")
    assert f"“{RULE}”" in err
    assert "condensing saved" in line(err, "money")
    called = f"{sys.executable} -m proxy"  # as this process could be called again
    assert line(err, "dashboard").strip() == f"{called} serve --config {config} --store {store} prints its address"
    look = line(err, "look").split()
    looked = subprocess.run(look, cwd=ROOT, capture_output=True, text=True, timeout=BOUND * 4, check=False)
    assert (looked.returncode, RULE in looked.stdout) == (0, True), looked.stderr
    assert looked.stderr == f"no proxy is asked: read from {store}\n"


@pytest.mark.parametrize(("place", "is_on_path"), [("bin", True), ("bin", False), ("elsewhere", False)])
def test_a_command_that_is_printed_can_be_run_where_it_is_printed(
    place: str, is_on_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / place / "condenser"
    called.parent.mkdir()
    called.write_text("#!/bin/sh\n")
    called.chmod(0o700)
    monkeypatch.setattr(sys, "argv", [str(called)])
    monkeypatch.setenv("PATH", str(called.parent) if is_on_path else str(tmp_path))
    monkeypatch.chdir(tmp_path if place == "bin" else called.parent.parent.parent)
    (word,) = program()
    assert word == ("condenser" if is_on_path else f"{'' if place == 'bin' else tmp_path.name + '/'}{place}/condenser")


def test_a_receipt_ends_with_what_would_have_been_cheaper(
    upstream: ScriptedUpstream, wrapped: Wrap, tmp_path: Path
) -> None:
    """The script's history grows far below every mark; `auto` then saves at least what was offered."""
    config, till = tmp_path / "condenser.toml", Till()
    config.write_text(PRICES.replace("4096", "1000000"))
    named = OPENAI.replace("max_retries=0", 'max_retries=0, default_headers={"X-Condenser-Session": "s"}')
    command = (sys.executable, "-c", named.replace("range(12)", "range(30)").replace("* 90", "* 300"), RULE)
    upstream.answer(till)
    options = ("--config", str(config), "--strategy", "extract")
    _, _, offered = wrapped(upstream.base_url, f"sqlite:///{tmp_path}/s.db", *command, options=options)
    share = re.search(r"economy=auto would have cut this session's prompts by (\d+) % \(about USD 0\.", offered)
    assert share is not None, offered
    assert "--economy auto -- " in offered.splitlines()[-1]
    direct, till.bill, till.before = till.bill, 0, []
    auto = (*options, "--economy", "auto")
    _, _, followed = wrapped(upstream.base_url, f"sqlite:///{tmp_path}/auto.db", *command, options=auto)
    assert "would have cut" not in followed
    saved = (direct - till.bill) / 1_000_000
    assert float(line(followed, "money").split("USD ")[2].split()[0]) == pytest.approx(saved, rel=0.02)
    assert 0.05 <= int(share[1]) / 100 <= saved * 1_000_000 / direct + 0.02


def test_a_receipt_has_no_session_of_another_proxy_with_the_same_store(
    upstream: ScriptedUpstream, wrapped: Wrap, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with running_proxy(upstream.base_url, store={"url": store}, window=4_096, strategy="extract") as other:
        elsewhere = OPENAI.replace("api_key=", f"base_url='{other.url}/v1', api_key=")
        both = elsewhere + ASKS_BOTH.replace('("ANTHROPIC', "#")
        code, out, err = wrapped(upstream.base_url, store, sys.executable, "-c", both, RULE)
    assert (code, out) == (0, "planned\n200\n"), err
    assert line(err, "requests").strip() == "1"
    assert "no conversation was long enough" in line(err, "look")
    assert "kept" not in err


def test_an_anthropic_program_runs_behind_a_web_proxy(wrapped: Wrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    with StrictMessages(lambda body: "Grüezi") as upstream:
        code, out, err = wrapped(f"{upstream.url}/v1", "memory://", sys.executable, "-c", ANTHROPIC)
    assert (code, out) == (0, "Grüezi\n"), err
    assert line(err, "requests").strip() == "1"
    assert "nothing is left" in line(err, "look")


def test_a_key_goes_to_the_server_that_the_environment_names(
    upstream: ScriptedUpstream, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
    with StrictMessages(lambda body: "Grüezi") as anthropic:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", anthropic.url)
        code, out, err = run(capfd, "wrap", "--store", "memory://", "--", sys.executable, "-c", ASKS_BOTH)
        assert (code, out) == (0, "200\n200\n"), err
        (asked,) = anthropic.journal.to(MESSAGES)
        assert "k" in [*(asked.header("authorization") or "").split(), asked.header("x-api-key")]
    assert {each.header("authorization") for each in upstream.journal.to()} == {"Bearer k"}


def test_two_servers_that_contradict_each_other_start_nothing(
    upstream: ScriptedUpstream, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.setenv("CONDENSER_UPSTREAM__BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
    code, out, err = run(capfd, "wrap", "--store", "memory://", "--", sys.executable, "-c", "print('ran')")
    assert (code, out) == (2, "")
    assert "OPENAI_BASE_URL names another server" in err


def test_a_signal_reaches_the_command_and_its_exit_status_comes_back(upstream: ScriptedUpstream) -> None:
    serving = [sys.executable, "-c", SERVE, "wrap", "--upstream", upstream.base_url, "--store", "memory://", "--"]
    words = [*serving, sys.executable, "-c", WAITS]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.wait(2 * BOUND) == 40 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_reach_the_command_too(number: signal.Signals, upstream: ScriptedUpstream, wrapped: Wrap) -> None:
    words = [sys.executable, "-c", ASKS, str(int(number))]
    assert wrapped(upstream.base_url, "memory://", *words)[:2] == (40 + number, "")


def test_the_command_gets_no_settings_of_the_proxy(
    upstream: ScriptedUpstream, wrapped: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UPSTREAM__API_KEY", "TENANT__PEPPER", "ADMIN__TOKEN"):
        monkeypatch.setenv(f"CONDENSER_{name}", "hush")
    script = "import os; print(*sorted(name for name in os.environ if name.startswith('CONDENSER_')))"
    code, out, err = wrapped(upstream.base_url, "memory://", sys.executable, "-c", script)
    assert (code, out) == (0, "CONDENSER_HOST CONDENSER_PORT\n"), err


def test_a_hangup_ends_neither_the_command_nor_the_proxy(
    upstream: ScriptedUpstream, wrapped: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_LOG__LEVEL", "info")
    code, out, err = wrapped(upstream.base_url, "memory://", sys.executable, "-c", HANGS_UP)
    assert (code, out) == (0, "200\n")
    assert err.count("SIGHUP changes nothing") == 1


@pytest.mark.parametrize(
    ("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)]
)
def test_the_exit_status_is_the_commands(code: str, status: int, upstream: ScriptedUpstream, wrapped: Wrap) -> None:
    said = "condenser: the command sent no request through the proxy\n"
    assert wrapped(upstream.base_url, "memory://", sys.executable, "-c", code) == (status, "", said)


def test_a_command_that_is_not_there_is_said_as_a_shell_would(upstream: ScriptedUpstream, wrapped: Wrap) -> None:
    code, _, err = wrapped(upstream.base_url, "memory://", "no-such-command-here")
    assert code == 127
    assert err.startswith("condenser: no-such-command-here: no such file or directory\n")
