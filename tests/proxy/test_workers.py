"""Several workers behind one port: real processes of `condenser serve --workers`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import IO

import pytest

from proxy.cli import main
from tests.proxy.command_line import run
from tests.support import wire
from tests.support.ports import free_port
from tests.support.processes import children, end
from tests.support.recording import CHAT
from tests.support.redis_server import await_true
from tests.support.replicas import ROOT, SERVE
from tests.support.replies import sse, stream, text_chunks
from tests.support.scraping import Figures
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

STREAM = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
FIRST, *_ = text_chunks("one two three")
HI = b'{"model":"scripted-1","messages":[{"role":"user","content":"hi"}]}'


@contextmanager
def serving(
    *words: str, log: IO[bytes] | None = None, number: int = 2, port: int = 0, program: str = SERVE
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a proxy that need not answer yet, and its first process, whose standard error goes to `log`."""
    port = port or free_port()
    command = [sys.executable, "-c", program, "serve", "--port", str(port), "--workers", str(number), *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            end(process)


def answers(url: str) -> bool:
    try:
        return wire.request(url, "GET", "/livez").status == 200
    except (OSError, HTTPException):
        return False


def counted(url: str) -> float:
    return Figures.of(url).sum("requests_total", model="scripted-1", action="passed")


def workers(process: subprocess.Popen[bytes]) -> set[int]:
    """The worker processes of a proxy."""
    return children(process.pid)


def shared_part(pid: int) -> float:
    """How much of the memory of a process others have too."""
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    size = {row[0]: int(row[1]) for row in rows}
    return (size["Shared_Clean:"] + size["Shared_Dirty:"]) / size["Rss:"]


@pytest.mark.usefixtures("elsewhere")
def test_workers_share_port_and_sessions_and_one_that_dies_is_replaced(
    upstream: ScriptedUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_DRAIN__TIMEOUT", "0")
    monkeypatch.setenv("CONDENSER_ADMIN__LISTEN", f"127.0.0.1:{free_port()}")
    store = f"sqlite:///{tmp_path}/condenser.db"
    more = ("--host", "0.0.0.0", "--store", store)
    with serving("--upstream", upstream.base_url, *more) as (url, process):
        await_true(lambda: answers(url), "a worker answers", 4 * BOUND)
        named = [*wire.JSON, ("X-Condenser-Session", "one")]
        replies = [wire.request(url, "POST", CHAT, HI, named) for _ in range(8)]
        assert [reply.status for reply in replies] == [200] * 8
        assert len({reply.session for reply in replies}) == 1
        listener = f"http://{os.environ['CONDENSER_ADMIN__LISTEN']}"
        await_true(lambda: counted(listener) == 8, "all workers' requests in the metrics of one")
        await_true(lambda: Figures.of(listener).processes == workers(process), "the figures of both", 4 * BOUND)
        assert f" at {url} is ready;" in run(capsys, "status")[1]  # found by the first process's note
        assert run(capsys, "sessions", "show", "one")[0] == 0  # at the address of administration, which the note has
        for path, here, there in (("/metrics", 404, 200), (CHAT, 200, 404), ("/healthz", 200, 200)):
            found = [{wire.request(each, "GET", path).status for _ in range(4)} for each in (url, listener)]
            assert found == [{here}, {there}], path
        upstream.reply(stream(FIRST, Signal()))
        dead, other = workers(process)
        assert min(shared_part(dead), shared_part(other)) > 0.5
        os.kill(dead, signal.SIGKILL)
        await_true(lambda: len(workers(process) - {dead, other}) == 1, "another worker", 2 * BOUND)
        assert other in workers(process)
        await_true(lambda: answers(url), "a worker answers", 2 * BOUND)
        assert counted(listener) == 8  # by the dead one too
        await_true(
            lambda: other in Figures.of(listener).processes and dead not in Figures.of(listener).processes,
            "live workers",
        )
        with wire.opened(url, "POST", CHAT, STREAM, wire.JSON) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            process.terminate()
            assert b"shutting_down" in response.read()  # workers drain too
        assert process.wait(2 * BOUND) == 0
        assert not answers(url)
    assert (tmp_path / "tenant.key").stat().st_size > 0


def test_workers_that_cannot_start_or_share_a_store_end_the_proxy(
    upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving("--upstream", upstream.base_url, "--store", "sqlite:////dev/null/condenser.db") as (_, process):
        assert process.wait(2 * BOUND) == 3
    assert main(["serve", "--workers", "2", "--store", "memory://"]) == 2
    assert "memory://" in capsys.readouterr().err


def is_stopped(pid: int) -> bool:
    return state(pid) == "T"


def has_ended(pid: int) -> bool:
    return state(pid) in "Z"


def state(pid: int) -> str:
    """The letter of a process's state; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def refused(url: str, key: str) -> set[int]:
    """The statuses of some requests with a key, each by a connection of its own."""
    headers = [*wire.JSON, ("x-api-key", key)]
    return {wire.request(url, "POST", CHAT, HI, headers).status for _ in range(6)}


def test_a_worker_that_does_not_read_keeps_no_other_from_new_settings(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    file, names = tmp_path / "condenser.toml", "".join(f'"{number:032x}" = "n{number}"\n' for number in range(4_000))

    def write(*keys: str) -> None:
        entries = "".join(f'[[auth.keys]]\nname="{k}"\nsha256="{sha256(k.encode()).hexdigest()}"\n' for k in keys)
        file.write_text(
            f'[store]\nurl = "sqlite:///{tmp_path}/s.db"\n[auth]\nmode = "keys"\n{entries}'
            f'[upstream]\nbase_url = "{upstream.base_url}"\napi_key = "sk-operator"\n[tenant.names]\n{names}'
        )

    write("anna", "ben")
    with serving("--config", str(file), number=3) as (url, process):
        await_true(lambda: answers(url) and len(workers(process)) == 3, "the workers answer", 4 * BOUND)
        stopped, dead, _ = before = sorted(workers(process))
        os.kill(stopped, signal.SIGSTOP)
        try:
            await_true(lambda: is_stopped(stopped), "one worker is stopped")
            write("ben")
            for _ in range(3):
                process.send_signal(signal.SIGHUP)
            os.kill(dead, signal.SIGKILL)
            await_true(lambda: len(workers(process) - set(before)) == 1, "another worker", 2 * BOUND)
        finally:
            os.kill(stopped, signal.SIGCONT)
        await_true(lambda: refused(url, "anna") == {401}, "the key has ended at all workers", 4 * BOUND)
        assert refused(url, "ben") == {200}


def test_a_worker_that_is_silent_is_replaced(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    soon = "import proxy.http.server as server; server.SILENT, server.STARTING = 4.0, 10.0; " + SERVE
    with serving("--upstream", upstream.base_url, "--store", f"sqlite:///{tmp_path}/s.db", program=soon) as (
        url,
        process,
    ):
        await_true(lambda: len(workers(process)) == 2, "the workers are there", 4 * BOUND)
        hanging, other = workers(process)
        await_true(lambda: all(answers(url) for _ in range(8)), "the workers answer", 4 * BOUND)
        os.kill(hanging, signal.SIGSTOP)
        await_true(lambda: len(workers(process) - {hanging, other}) == 1, "another worker", 4 * BOUND)
        assert hanging not in workers(process)
        assert other in workers(process)


HANGS = """
import os, signal, proxy.http.server as server
served, server.STARTING = server._serve, 10.0
def serve(*words):
    try:
        os.close(os.open({!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return served(*words)
    os.kill(os.getpid(), signal.SIGSTOP)
server._serve = serve
"""
"""The first worker hangs before it serves."""


def test_a_worker_that_hangs_while_it_starts_is_replaced(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    program, words = f"{HANGS.format(str(tmp_path / 'hung'))}{SERVE}", ("--store", f"sqlite:///{tmp_path}/s.db")
    with serving("--upstream", upstream.base_url, *words, program=program) as (url, process):
        await_true(lambda: any(map(is_stopped, workers(process))), "one worker hangs", 4 * BOUND)
        (hanging,) = filter(is_stopped, workers(process))
        await_true(lambda: hanging not in workers(process) and len(workers(process)) == 2, "another one", 4 * BOUND)
        await_true(lambda: answers(url), "a worker answers", 2 * BOUND)


def test_workers_whose_first_process_was_killed_drain_and_leave_the_port(
    upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_DRAIN__TIMEOUT", "600")
    gate = Signal()
    words = ("--upstream", upstream.base_url, "--store", f"sqlite:///{tmp_path}/s.db")
    with serving(*words) as (url, process):
        await_true(lambda: answers(url) and len(workers(process)) == 2, "the workers answer", 4 * BOUND)
        left = workers(process)
        upstream.reply(stream(FIRST, gate, *text_chunks("the end")))
        with wire.opened(url, "POST", CHAT, STREAM, wire.JSON) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            process.kill()
            await_true(lambda: not answers(url), "the port is closed", 2 * BOUND)
            gate.set()
            assert response.read().endswith(b"data: [DONE]\n\n")
        await_true(lambda: all(map(has_ended, left)), "the workers have ended", 2 * BOUND)
    with serving(*words, port=int(url.rpartition(":")[2])) as (again, _):
        await_true(lambda: answers(again), "a new proxy has the port", 4 * BOUND)


def test_what_a_worker_that_ends_has_counted_stays(
    upstream: ScriptedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDENSER_DRAIN__TIMEOUT", "600")
    gate = Signal()
    with serving("--upstream", upstream.base_url, "--store", f"sqlite:///{tmp_path}/s.db") as (url, process):
        await_true(lambda: answers(url) and len(workers(process)) == 2, "the workers answer", 4 * BOUND)
        first = workers(process)
        upstream.reply(stream(FIRST, gate, *text_chunks("the end")))
        with wire.opened(url, "POST", CHAT, STREAM, wire.JSON) as response:
            assert wire.until(response, sse(FIRST)) == sse(FIRST)
            for worker in first:
                os.kill(worker, signal.SIGTERM)
            await_true(lambda: bool(workers(process) - first) and answers(url), "another worker", 4 * BOUND)
            gate.set()
            assert response.read().endswith(b"data: [DONE]\n\n")
        await_true(lambda: first.isdisjoint(workers(process)), "the first workers have ended", 4 * BOUND)
        found = Figures.of(url)
        assert found.sum("requests_total") == found.sum("replies_total", by="upstream") == 1


def test_a_signal_while_workers_are_started_ends_them(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with serving("--upstream", upstream.base_url, "--store", f"sqlite:///{tmp_path}/s.db") as (_, process):
        await_true(lambda: bool(workers(process)), "the first worker", 4 * BOUND)
        process.terminate()
        assert process.wait(4 * BOUND) == 0
