"""Three replicas on one Redis are replaced one after the other while 200 streams run: no reply is lost.

Their settings are those of deploy/kubernetes/standalone/.
"""

import json
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from time import monotonic

import pytest

from tests.support import wire
from tests.support.recording import CHAT, Exchange
from tests.support.redis_server import RedisServer
from tests.support.relay import relay
from tests.support.replicas import ROOT, await_answer, replica
from tests.support.replies import DONE, Reply, sse, stream, text_chunks
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

REPLICAS, STREAMS = 3, 200
# Its drain.delay is longer than a step of the restart, so that an old replica still accepts at its end.
BASE = ROOT / "deploy" / "kubernetes" / "standalone" / "condenser.toml"
DELAY = tomllib.loads(BASE.read_text())["drain"]["delay"]
EACH = STREAMS // (2 * REPLICAS + 1)
SETTINGS = {
    "CONDENSER_CONFIG": str(BASE),
    "CONDENSER_ADMIN__LISTEN": "127.0.0.1:0",  # several replicas on one machine
    "CONDENSER_KEEPALIVE_INTERVAL": "0",
}


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen[bytes]
    log: Path


@pytest.mark.torture
@pytest.mark.timeout(240)
def test_a_rolling_restart_loses_no_reply(tmp_path: Path) -> None:
    end = Signal("the end of all streams")
    began, targets, old = monotonic(), list[str](), list[Running]()
    with RedisServer() as redis, ScriptedUpstream() as upstream, relay(targets) as front, ExitStack() as stack:
        upstream.answer(lambda asked: reply(asked, end))
        streams = list[HTTPResponse]()

        def start(name: str, **more: str) -> Running:
            log = tmp_path / name
            made = replica(upstream.base_url, redis.url, "mask+extract", 8_192, log, **SETTINGS, **more)
            url, process = stack.enter_context(made)
            await_answer(url, process)
            targets.append(url)
            return Running(url, process, log)

        def open_streams(number: int) -> None:
            for _ in range(number):
                said = f"stream {len(streams)}"
                response = stack.enter_context(wire.opened(front, "POST", CHAT, request(said), wire.JSON))
                wire.until(response, head(said))
                streams.append(response)

        old.extend(start(f"old-{number}") for number in range(REPLICAS))
        open_streams(EACH)
        for number, each in enumerate(old):
            start(f"new-{number}", CONDENSER_DRAIN__DELAY="0")
            each.process.terminate()
            while wire.request(each.url, "GET", "/readyz").status != 503:  # at once, but a signal takes a moment
                pass
            open_streams(EACH)  # the balancer has not noticed: the old one, too, takes its share
            targets.remove(each.url)
            open_streams(EACH)
        open_streams(STREAMS - len(streams))
        assert all(each.process.poll() is None for each in old)
        restarted = monotonic() - began
        end.set()
        for number, response in enumerate(streams):
            assert response.read() == tail(f"stream {number}")
        assert [each.process.wait(2 * DELAY) for each in old] == [0] * REPLICAS
        said = [each.log.read_text() for each in old]
    assert len(streams) == STREAMS
    assert all("replies that were cut: 0" in text and "Traceback" not in text for text in said)
    drained = [line.partition("shutting down; ")[2] for text in said for line in text.splitlines()]
    sys.stderr.write(
        f"\nreplaced after {restarted:.1f} s with {STREAMS} streams open, all whole; old replicas, at the end of their "
        f"delay: {[line for line in drained if line]}\n"
    )


def request(said: str) -> bytes:
    return json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": said}]}).encode()


def reply(asked: Exchange, end: Signal) -> Reply | None:
    if asked.path != CHAT:
        return None
    first, *rest = text_chunks(asked.json()["messages"][-1]["content"])
    return stream(first, end, *rest)


def head(said: str) -> bytes:
    return sse(text_chunks(said)[0])


def tail(said: str) -> bytes:
    return b"".join(map(sse, text_chunks(said)[1:])) + DONE
