"""The official openai package for Node, run by node/driver.mjs: one process per scenario."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cases import CANCELLED_WITHIN
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import completion, error, json_reply, stream, text_chunks, usage_chunk
from tests.support.signals import BOUND, Signal
from tests.support.upstream import ScriptedUpstream

HERE = Path(__file__).parent / "node"
NODE = shutil.which("node")
INSTALLED = (HERE / "node_modules" / "openai").is_dir()
pytestmark = pytest.mark.skipif(
    NODE is None or not INSTALLED,
    reason=f"the Node client is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


class Driver:
    """A running scenario: lines of JSON come out as they are printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self) -> Any:
        assert self._process.stdout is not None
        printed = self._process.stdout.readline()
        assert printed, f"the driver died: {self._process.stderr and self._process.stderr.read()}"
        return json.loads(printed)

    def release(self) -> None:
        """Let a scenario that waits for its standard input go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextmanager
def answering(script: str) -> Iterator[Callable[[Any], Any]]:
    """Asks a process of Node, which answers each line of JSON with another."""
    assert NODE is not None
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([NODE, script], cwd=HERE, env={"PATH": os.environ["PATH"]}, text=True, **pipes) as process:

        def ask(given: Any) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(given), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask


@contextmanager
def driving(proxy: Proxy, scenario: str) -> Iterator[Driver]:
    assert NODE is not None
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [NODE, "driver.mjs", proxy.base_url, scenario]
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(command, cwd=HERE, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Driver(process)
            process.wait(BOUND)
        finally:
            process.kill()


def run(proxy: Proxy, scenario: str) -> Any:
    """What the scenario came to: its value, or the error of the SDK as `{"error": …}`."""
    with driving(proxy, scenario) as driver:
        outcome = driver.line()
    return outcome.get("ok", outcome)


def test_a_completion_arrives_as_the_upstream_wrote_it(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo, Zürich"))
    assert run(proxy, "completion")["choices"][0]["message"]["content"] == "Hallo, Zürich"
    assert_relayed(proxy, upstream)


def test_a_stream_arrives_while_the_upstream_is_still_writing(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    with driving(proxy, "stream") as driver:
        assert driver.line() == {"first": "one "}
        gate.set()
        outcome = driver.line()["ok"]
    assert (outcome["text"], outcome["usage"]["prompt_tokens"]) == ("one two", 5)
    assert_relayed(proxy, upstream)


def test_an_upstream_error_has_status_body_and_headers(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(error(429, "slow down", code="rate", headers=[("retry-after", "9")]))
    caught = run(proxy, "completion")["error"]
    assert (caught["kind"], caught["status"], caught["code"]) == ("RateLimitError", 429, "rate")
    assert caught["retryAfter"] == "9"
    assert caught["body"]["message"] == "slow down"
    assert_relayed(proxy, upstream)


def test_the_sdk_retries_as_the_upstream_asks(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    soon = [("retry-after-ms", "1")]
    upstream.reply(error(503, headers=soon), error(429, headers=soon), completion("at last"))
    assert run(proxy, "retry")["choices"][0]["message"]["content"] == "at last"
    assert len(upstream.journal.to(CHAT)) == 3
    assert_relayed(proxy, upstream)


def test_a_stream_that_breaks_off_is_an_api_error(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], cut=True))
    caught = run(proxy, "broken_stream")["error"]
    assert set(caught["body"]) == {"message", "type", "param", "code"}


def test_leaving_a_stream_stops_the_upstream(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    with driving(proxy, "cancel") as driver:
        assert "first" in driver.line()
        upstream.journal.only().disconnected.wait(CANCELLED_WITHIN)
        driver.release()
        assert driver.line() == {"ok": "left"}


def test_a_file_is_uploaded_byte_for_byte(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(json_reply({"id": "file-1", "object": "file"}))
    assert run(proxy, "upload")["id"] == "file-1"
    assert b"\x00\xff\n\r" in upstream.journal.only("/v1/files").body
    assert_relayed(proxy, upstream, "/v1/files", action=None)


def test_a_response_crosses_unchanged(proxy: Proxy, upstream: ScriptedUpstream) -> None:
    assert run(proxy, "responses") == "responded"
    assert_relayed(proxy, upstream, "/v1/responses")
