"""The end of `condenser serve`: what clients, load balancers and operators see of it. Real processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import wire
from tests.support.recording import CHAT
from tests.support.redis_server import await_true
from tests.support.replicas import await_answer, replica
from tests.support.replies import DONE, Reply, hang, sse, stream, text_chunks
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

HELLO = [{"role": "user", "content": "hello"}]
STREAM = json.dumps({"model": "m", "stream": True, "messages": HELLO}).encode()
WHOLE = json.dumps({"model": "m", "messages": HELLO}).encode()
FIRST, *REST = text_chunks("one two three")


@dataclass(frozen=True)
class Served:
    """One `condenser serve`, and the file with its standard error."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def readiness(self) -> int:
        return wire.request(self.url, "GET", "/readyz").status

    def accepts(self) -> bool:
        parts = urlsplit(self.url)
        assert parts.port is not None
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", parts.port)) == 0

    def end(self) -> list[str]:
        """The lines of the log, of requests left out, once the process has ended well."""
        assert self.process.wait(2 * BOUND) == 0
        said = self.log.read_text("utf-8")
        assert "Traceback" not in said
        return [line.split(" ", 2)[2] for line in said.splitlines() if ", request " not in line]


@contextmanager
def serving(upstream: ScriptedUpstream, tmp_path: Path, **drain: str) -> Iterator[Served]:
    log = tmp_path / "stderr"
    settings = {f"CONDENSER_{name.upper()}": value for name, value in drain.items()}
    store = f"sqlite:///{tmp_path}/s.db"
    with replica(upstream.base_url, store, "mask+half-window", 4_096, log, **settings) as (url, process):
        await_answer(url, process)
        yield Served(url, process, log)


@contextmanager
def streaming(served: Served, path: str = CHAT, first: bytes = sse(FIRST)) -> Iterator[HTTPResponse]:
    """A stream whose first event has come and whose next one has not."""
    with wire.opened(served.url, "POST", path, STREAM, wire.JSON) as response:
        assert wire.until(response, first) == first
        yield response


def held(gate: Signal) -> Reply:
    return stream(FIRST, gate, *REST)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_that_outlives_the_drain_ends_with_an_error_event(
    sent: int, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    upstream.reply(held(Signal()))
    with serving(upstream, tmp_path, drain__timeout="0") as served, streaming(served) as response:
        served.process.send_signal(sent)
        rest = response.read()
        lines = served.end()
    assert b"[DONE]" not in rest
    [data] = wire.events(rest)
    assert json.loads(data)["error"]["code"] == "shutting_down"
    began, ended = lines
    assert began == "shutting down; running replies: 1, seconds for them to end: 0"
    assert ended.endswith("; replies that were cut: 1")


def test_streams_of_other_protocols_end_with_an_event_of_theirs(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    numbered = b'event: x\ndata: {"type":"x","sequence_number":7}\n\n'
    upstream.answer(lambda _: stream(numbered, Signal()))
    with (
        serving(upstream, tmp_path, drain__timeout="0") as served,
        streaming(served, "/v1/messages", numbered) as messages,
        streaming(served, "/v1/responses", numbered) as responses,
    ):
        served.process.terminate()
        anthropic, openai = messages.read(), responses.read()
        served.end()
    assert anthropic.startswith(b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"')
    assert openai.startswith(b"event: error\n")
    event = json.loads(wire.events(openai)[0])
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "shutting_down", 8)


def test_a_request_without_a_reply_yet_gets_503(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.answer(lambda _: hang(Signal()))
    with (
        serving(upstream, tmp_path, drain__timeout="0") as served,
        wire.sent(served.url, "POST", CHAT, WHOLE, wire.JSON) as connection,
    ):
        await_true(lambda: len(upstream.journal.to(CHAT)) == 1, "the upstream has the request")
        served.process.terminate()
        response = connection.getresponse()
        assert response.status == 503
        assert json.loads(response.read())["error"]["code"] == "shutting_down"
        served.end()


def test_a_reply_that_ends_in_time_is_whole_and_no_new_connection_is_taken_meanwhile(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    gate = Signal("the rest of the stream")
    upstream.reply(held(gate))
    with serving(upstream, tmp_path, drain__timeout="600") as served, streaming(served) as response:
        served.process.terminate()
        await_true(lambda: not served.accepts(), "the port is closed")
        gate.set()
        assert response.read() == b"".join(map(sse, REST)) + DONE
        assert served.end()[-1].endswith("; replies that were cut: 0")


def test_readiness_turns_at_once_and_requests_are_taken_until_the_delay_is_over(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    with serving(upstream, tmp_path, drain__delay="600") as served:
        assert served.readiness() == 200
        served.process.terminate()
        await_true(lambda: served.readiness() == 503, "the proxy is not ready any more")
        assert wire.request(served.url, "GET", "/livez").status == 200
        assert wire.request(served.url, "POST", CHAT, WHOLE, wire.JSON).status == 200
        served.process.terminate()
        served.end()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_the_proxy_at_once(workers: str, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.reply(held(Signal()))
    with serving(upstream, tmp_path, drain__timeout="600", workers=workers) as served, streaming(served):
        served.process.terminate()
        await_true(lambda: "shutting down" in served.log.read_text("utf-8"), "the proxy drains")
        served.process.terminate()
        served.end()


def test_workers_drain_too(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.reply(held(Signal()))
    with serving(upstream, tmp_path, drain__timeout="0", workers="2") as served, streaming(served) as response:
        served.process.terminate()
        assert b"shutting_down" in response.read()
        served.end()
