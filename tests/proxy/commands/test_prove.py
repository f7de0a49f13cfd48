"""`prove`: pairs of runs of a user's own tasks, here before a scripted upstream."""

import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.commands import prove
from tests.proxy.command_line import run
from tests.support import replies
from tests.support.recording import CHAT, Exchange
from tests.support.replicas import ROOT
from tests.support.replies import Reply
from tests.support.upstream import ScriptedUpstream

TASKS = ROOT / "eval" / "tasks"
SAMPLE = TASKS / "tasks.toml"
AGENT = (sys.executable, "agent.py")
Prove = Callable[..., tuple[int, str, str]]


def finds(exchange: Exchange) -> Reply | None:
    """A model that answers what it is asked if the prompt has it."""
    if exchange.path != CHAT:
        return None
    text = exchange.body.decode()
    name = re.search(r"What is the ticket number of (\w+)", text)
    found = re.search(rf"ticket number of {name[1]} is (\d+)", text) if name else None
    return replies.completion(f"It is {found[1]}." if found else "I do not know.", tokens=(len(text) // 4, 5))


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as upstream:
        upstream.answer(finds)
        yield upstream


@pytest.fixture
def proving(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Prove:
    """Runs tasks in a folder of the test's own: exit code, standard output and standard error."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-prove-secret")
    monkeypatch.setenv("CONDENSER_CONFIG", "")
    monkeypatch.chdir(tmp_path)

    def prove(
        *options: str, tasks: Path | str = SAMPLE, folder: Path = TASKS / "desk", words: tuple[str, ...] = AGENT
    ) -> tuple[int, str, str]:
        if isinstance(tasks, str):
            (tmp_path / "tasks.toml").write_text(tasks)
            tasks = tmp_path / "tasks.toml"
        given = ("--tasks", str(tasks), "--folder", str(folder), "--upstream", upstream.base_url, "--window", "1700")
        return run(capsys, "prove", *given, *options, "--", *words)

    return prove


def task(check: str, prompt: str = "Do it.") -> str:
    return f"[[tasks]]\nprompt = {json.dumps(prompt)}\ncheck = {json.dumps(check)}\n"


def script(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def read(found: tuple[int, str, str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(found[1])
    return document


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "condenser-prove.ndjson").read_text().splitlines()]


def test_the_sample_tasks_are_solved_with_and_without(
    proving: Prove, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The model finds what the prompt has, and no more."""
    quoted = read(proving("--json", "--repeat", "1"))
    assert (quoted["pairs"], quoted["condensed"], quoted["solved"]["without"]) == (5, 5, 5)
    assert quoted["solved"]["with"] == 5
    assert quoted["tokens"]["with"] < quoted["tokens"]["without"]
    assert quoted["requests"] == {"without": 125, "with": 125, "ratio": 1.0, "at_most": 1.0}
    assert quoted["statuses"] == {"0": 10}
    assert [each["arm"] for each in lines(tmp_path)] == ["without", "with", "with", "without"] * 2 + ["without", "with"]
    dropped = read(proving("--json", "--repeat", "1", "--strategy", "recent", "--window", "1000"))
    assert (dropped["pairs"], dropped["condensed"], dropped["silent"], dropped["solved"]["without"]) == (5, 5, 0, 5)
    assert dropped["solved"]["with"] < 5
    assert 0 < dropped["solved"]["fewer"] < dropped["solved"]["at_most"]
    again = read(proving("--json", "--repeat", "1", "--strategy", "extract", "--window", "1000"))
    assert (again["pairs"], len(lines(tmp_path))) == (5, 25)  # those without are known
    assert {each.header("authorization") for each in upstream.journal.to(CHAT)} == {"Bearer sk-prove-secret"}
    assert not list((TASKS / "desk").glob("answer*"))


def test_the_table_says_what_it_shows(proving: Prove) -> None:
    code, out, _ = proving("--repeat", "1", "--window", "3000")
    assert code == 0
    assert re.search(r"solved +5 of 5 +5 of 5 +0 points fewer +46 points fewer", out)
    assert re.search(r"tokens +123,989 +123,989 +x 1\.00 +x 1\.00", out)
    assert "in 0 something was condensed" in out
    assert "5 pairs without a difference show 46 points" in out
    assert "bill" not in out  # the model has no price


def test_the_bill_is_that_of_the_prices(proving: Prove, tmp_path: Path) -> None:
    prices = "prices = { input = 2.0, cached_input = 0.5, output = 8.0 }"
    (tmp_path / "c.toml").write_text(f'[[models]]\nmatch = "scripted-1"\n{prices}\n')
    code, out, _ = proving("--repeat", "1", "--config", str(tmp_path / "c.toml"))
    assert code == 0
    assert re.search(r"bill, USD +0\.\d+ +0\.\d+ +x 0\.\d\d", out)
    assert sum(each["money"] for each in lines(tmp_path)) > 0


def test_a_run_is_not_run_again(proving: Prove, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    first = read(proving("--json", "--repeat", "1"))
    asked = len(upstream.journal.to(CHAT))
    whole = lines(tmp_path)
    with (tmp_path / "condenser-prove.ndjson").open("a") as file:
        file.write('{"key": "cut of')
    assert read(proving("--json", "--repeat", "1")) == first
    assert len(upstream.journal.to(CHAT)) == asked
    (tmp_path / "condenser-prove.ndjson").write_text("".join(json.dumps(each) + "\n" for each in whole[:3]))
    assert read(proving("--json", "--repeat", "1"))["pairs"] == 5
    assert len(upstream.journal.to(CHAT)) == asked + 7 * asked // 10


@pytest.mark.parametrize("parallel", [1, 3])
def test_the_budget_is_not_exceeded(parallel: int, proving: Prove, tmp_path: Path) -> None:
    code, out, _ = proving("--json", "--repeat", "2", "--budget", "150000", "--parallel", str(parallel))
    found = read((code, out, ""))
    assert (code, found["stopped"]) == (1, "more could exceed --budget")
    spent = [each["tokens"] for each in lines(tmp_path)]
    assert 0 < sum(spent) <= 150_000
    assert found["pairs"] <= len(spent) // 2
    assert parallel > 1 or found["pairs"] == len(spent) // 2  # runs at once may be of different pairs
    assert read(proving("--json", "--repeat", "2"))["pairs"] == 10


def test_a_run_over_its_time_ends_with_all_that_it_has_started(proving: Prove, tmp_path: Path) -> None:
    """The child's own child holds a lock on a file for as long as it lives."""
    code = (
        "import subprocess, sys, time\n"
        "holding = 'import fcntl, sys, time; f = open(sys.argv[1], \"w\"); fcntl.flock(f, 2); time.sleep(999)'\n"
        f"subprocess.Popen([sys.executable, '-c', holding, {str(tmp_path / 'lock')!r}])\n"
        "time.sleep(999)\n"
    )
    found = read(proving("--json", "--repeat", "1", "--timeout", "2", tasks=task("true"), words=script(code)))
    assert (found["pairs"], found["statuses"], found["silent"]) == (1, {"None": 2}, 2)
    assert found["solved"]["without"] == found["solved"]["with"] == 0
    import fcntl

    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_check_has_no_key_and_what_it_prints_is_nowhere(
    proving: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "CONDENSER_UPSTREAM__API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hush-hush")
    check = f"env > {tmp_path}/env; yes printed | head -c 1000000; yes printed | head -c 1000000 >&2"
    code, out, err = proving("--repeat", "1", tasks=task(check), words=script(""))
    assert code == 0
    assert {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()} <= {*prove.KEPT, *SHELLS}
    assert not any("printed" in text for text in (out, err, (tmp_path / "condenser-prove.ndjson").read_text()))


SHELLS = ("PWD", "OLDPWD", "SHLVL", "_")


def test_a_copy_has_no_link_that_leads_out(proving: Prove, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    (folder / "inner").mkdir(parents=True)
    (folder / "kept.txt").write_text("kept")
    (tmp_path / "outside.txt").write_text("outside")
    links = {"inner/up": "../kept.txt", "out": "../outside.txt", "absolute": str(folder / "kept.txt"), "loop": "loop"}
    for name, to in links.items():
        (folder / name).symlink_to(to)
    os.mkfifo(folder / "pipe")
    code = "import os; open('inner/up', 'a').write(' and more'); os.remove('kept.txt')"
    check = "test ! -e kept.txt && test ! -L out && test ! -L absolute && test ! -e pipe && test -L inner/up"
    found = read(proving("--json", "--repeat", "1", tasks=task(check), folder=folder, words=script(code)))
    assert (found["solved"]["without"], found["solved"]["with"]) == (1, 1)
    assert (folder / "kept.txt").read_text() == "kept"


def test_a_folder_may_have_the_temporary_files(proving: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "temporary").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work" / "temporary"))
    check = 'test -d temporary && test -z "$(ls -A temporary)"'
    found = read(proving("--json", "--repeat", "1", tasks=task(check), folder=tmp_path / "work", words=script("")))
    assert found["solved"]["with"] == 1


def test_nothing_is_run_if_results_cannot_be_written(
    proving: Prove, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    code, _, err = proving("--results", str(tmp_path / "missing" / "results"))
    assert (code, "cannot be used for results" in err, upstream.journal.to(CHAT)) == (1, True, [])


def test_a_second_signal_leaves_nothing_running(
    proving: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "_GRACE", 0.5)
    signals = "import os, signal, time; again = lambda *_: os.kill(os.getppid(), signal.SIGTERM)"
    stays = f"{signals}; signal.signal(signal.SIGTERM, again); open('{tmp_path}/pid', 'w').write(str(os.getpid()))"
    code, out, _ = proving("--json", tasks=task("true"), words=script(f"{stays}; again(); time.sleep(60)"))
    assert (code, read((code, out, ""))["stopped"]) == (1, "interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_prompt_takes_its_place(proving: Prove) -> None:
    write = "import sys; open('said', 'w').write('|'.join(sys.argv[1:]))"
    for words, said in (((), "Do it."), (("-p", "{prompt}", "--now"), "-p|Do it.|--now")):
        found = read(
            proving(
                "--json", "--repeat", "1", tasks=task(f"grep -qxF -- '{said}' said"), words=(*script(write), *words)
            )
        )
        assert found["solved"]["with"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_a_report_and_a_run_that_can_go_on(
    number: signal.Signals, proving: Prove, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    def interrupts(exchange: Exchange) -> Reply | None:
        if len(upstream.journal.to(CHAT)) == 80:
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        return finds(exchange)

    upstream.answer(interrupts)
    waits = "import runpy, sys, time; runpy.run_path('agent.py', run_name='__main__'); time.sleep(2)"
    code, out, _ = proving("--json", "--repeat", "1", words=script(waits))
    assert (code, read((code, out, ""))["stopped"]) == (1, "interrupted")
    assert len(lines(tmp_path)) == 3
    assert read((code, out, ""))["pairs"] == 1


@pytest.mark.parametrize(
    ("tasks", "says"),
    [("", "has no [[tasks]]"), ("[[tasks]]\nprompt = 'x'\n", "without a prompt or a check"), ("][", "cannot be read")],
)
def test_a_file_without_tasks_is_said(proving: Prove, tasks: str, says: str) -> None:
    code, _, err = proving(tasks=tasks)
    assert code == 2
    assert says in err


def test_a_command_that_is_not_there_is_said(proving: Prove) -> None:
    code, _, err = proving(words=("no-such-command-here",))
    assert code == 1
    assert "no-such-command-here: no such file or directory" in err
