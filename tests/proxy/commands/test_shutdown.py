"""The end of `condenser serve`: what clients, load balancers and operators see of it. Real processes."""

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

from tests.support import wire
from tests.support.recording import CHAT, Exchange
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


def test_what_outlives_the_drain_ends_with_a_protocol_error(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    """Streams end with an event, and a request without a reply yet gets 503."""
    numbered = b'event: x\ndata: {"type":"x","sequence_number":7}\n\n'

    def answer(asked: Exchange) -> Reply:
        if asked.path != CHAT:
            return stream(numbered, Signal())
        return held(Signal()) if asked.json().get("stream") else hang(Signal())

    upstream.answer(answer)
    with (
        serving(upstream, tmp_path, drain__timeout="0") as served,
        streaming(served) as chat,
        streaming(served, "/v1/messages", numbered) as messages,
        streaming(served, "/v1/responses", numbered) as responses,
        wire.sent(served.url, "POST", CHAT, WHOLE, wire.JSON) as waiting,
    ):
        await_true(lambda: len(upstream.journal.to(CHAT)) == 2, "the upstream has all requests")
        served.process.terminate()
        rest, anthropic, openai = chat.read(), messages.read(), responses.read()
        unanswered = waiting.getresponse()
        assert unanswered.status == 503
        assert json.loads(unanswered.read())["error"]["code"] == "shutting_down"
        began, ended = served.end()
    assert began == "shutting down; running replies: 4, seconds for them to end: 0"
    assert ended.endswith("; replies that were cut: 4")
    assert b"[DONE]" not in rest
    [data] = wire.events(rest)
    assert json.loads(data)["error"]["code"] == "shutting_down"
    assert anthropic.startswith(b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"')
    assert openai.startswith(b"event: error\n")
    event = json.loads(wire.events(openai)[0])
    assert (event["type"], event["code"], event["sequence_number"]) == ("error", "shutting_down", 8)


def test_a_reply_in_time_is_whole_while_draining(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    gate = Signal("the rest of the stream")
    upstream.reply(held(gate))
    with serving(upstream, tmp_path, drain__timeout="600") as served, streaming(served) as response:
        served.process.send_signal(signal.SIGINT)
        await_true(lambda: not served.accepts(), "the port is closed")
        gate.set()
        assert response.read() == b"".join(map(sse, REST)) + DONE
        assert served.end()[-1].endswith("; replies that were cut: 0")


def test_readiness_turns_before_requests_are_refused(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with serving(upstream, tmp_path, drain__delay="600") as served:
        served.process.send_signal(signal.SIGHUP)
        await_true(lambda: "the settings were reloaded" in served.log.read_text("utf-8"), "the signal is noted")
        assert served.readiness() == 200
        served.process.terminate()
        await_true(lambda: served.readiness() == 503, "the proxy is not ready any more")
        assert wire.request(served.url, "GET", "/livez").status == 200
        assert wire.request(served.url, "POST", CHAT, WHOLE, wire.JSON).status == 200
        served.process.terminate()
        assert sum("were reloaded" in line for line in served.end()) == 1
