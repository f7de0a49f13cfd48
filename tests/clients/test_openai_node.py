"""The official openai package for Node, run by node/driver.mjs."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cases import CANCELLED_WITHIN
from tests.support.proxy import Proxy, assert_relayed
from tests.support.recording import CHAT
from tests.support.replies import completion, error, json_reply, stream, text_chunks, usage_chunk
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

HERE = Path(__file__).parent / "node"
NODE = shutil.which("node")
INSTALLED = (HERE / "node_modules" / "openai").is_dir()
pytestmark = pytest.mark.skipif(
    NODE is None or not INSTALLED,
    reason=f"the Node client is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


class Driver:
    """A process of Node, which reads lines of JSON and prints others."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, given: Any) -> None:
        print(json.dumps(given), file=self._process.stdin, flush=True)

    def line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, given: Any) -> Any:
        self.tell(given)
        return self.line()

    def run(self, base_url: str, scenario: str) -> Any:
        """What a scenario came to: its value, or the error of the SDK as `{"error": …}`."""
        outcome = self.ask({"baseURL": base_url, "scenario": scenario})
        return outcome.get("ok", outcome)


@contextmanager
def driving(script: str) -> Iterator[Driver]:
    assert NODE is not None
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([NODE, script], cwd=HERE, env={"PATH": os.environ["PATH"]}, text=True, **pipes) as process:
        yield Driver(process)


@pytest.fixture(scope="module")
def node() -> Iterator[Driver]:
    with driving("driver.mjs") as driver:
        yield driver


def test_a_completion_arrives_as_the_upstream_wrote_it(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo, Zürich"))
    assert node.run(proxy.base_url, "completion")["choices"][0]["message"]["content"] == "Hallo, Zürich"
    assert_relayed(proxy, upstream)


def test_a_stream_arrives_while_the_upstream_is_still_writing(
    node: Driver, proxy: Proxy, upstream: ScriptedUpstream
) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    node.tell({"baseURL": proxy.base_url, "scenario": "stream"})
    assert node.line() == {"first": "one "}
    gate.set()
    outcome = node.line()["ok"]
    assert (outcome["text"], outcome["usage"]["prompt_tokens"]) == ("one two", 5)
    assert_relayed(proxy, upstream)


def test_an_upstream_error_has_status_body_and_headers(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(error(429, "slow down", code="rate", headers=[("retry-after", "9")]))
    caught = node.run(proxy.base_url, "completion")["error"]
    assert (caught["kind"], caught["status"], caught["code"]) == ("RateLimitError", 429, "rate")
    assert caught["retryAfter"] == "9"
    assert caught["body"]["message"] == "slow down"
    assert_relayed(proxy, upstream)


def test_the_sdk_retries_as_the_upstream_asks(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    soon = [("retry-after-ms", "1")]
    upstream.reply(error(503, headers=soon), error(429, headers=soon), completion("at last"))
    assert node.run(proxy.base_url, "retry")["choices"][0]["message"]["content"] == "at last"
    assert len(upstream.journal.to(CHAT)) == 3
    assert_relayed(proxy, upstream)


def test_a_stream_that_breaks_off_is_an_api_error(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], cut=True))
    caught = node.run(proxy.base_url, "broken_stream")["error"]
    assert set(caught["body"]) == {"message", "type", "param", "code"}


def test_leaving_a_stream_stops_the_upstream(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(stream(*text_chunks("one two")[:2], Signal()))
    assert "first" in node.ask({"baseURL": proxy.base_url, "scenario": "cancel"})
    upstream.journal.only().disconnected.wait(CANCELLED_WITHIN)
    assert node.ask("go on") == {"ok": "left"}


def test_a_file_is_uploaded_byte_for_byte(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(json_reply({"id": "file-1", "object": "file"}))
    assert node.run(proxy.base_url, "upload")["id"] == "file-1"
    assert b"\x00\xff\n\r" in upstream.journal.only("/v1/files").body
    assert_relayed(proxy, upstream, "/v1/files", action=None)


def test_a_response_crosses_unchanged(node: Driver, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    assert node.run(proxy.base_url, "responses") == "responded"
    assert_relayed(proxy, upstream, "/v1/responses")
