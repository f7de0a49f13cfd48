"""The official anthropic package for Node, run by node/messages.mjs."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.test_anthropic_python import BLOCKS, assert_taken, proxy, upstream
from tests.clients.test_openai_node import HERE, NODE, Driver, driving
from tests.http.test_messages import WINDOW, reader
from tests.support.messages_upstream import COUNT, MESSAGES, StrictMessages, error
from tests.support.prefixes import event
from tests.support.proxy import Proxy, assert_relayed, proxy_before
from tests.support.replies import json_reply, stream

__all__ = ["proxy", "upstream"]
pytestmark = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules" / "@anthropic-ai" / "sdk").is_dir(),
    reason=f"the Node client of Anthropic is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


@pytest.fixture(scope="module")
def node() -> Iterator[Driver]:
    with driving("messages.mjs") as driver:
        yield driver


@pytest.mark.parametrize("scenario", ["message", "stream"])
def test_a_message_crosses_unchanged(node: Driver, scenario: str, proxy: Proxy, upstream: StrictMessages) -> None:
    message = node.run(proxy.url, scenario)
    assert [block["type"] for block in message["content"]] == [block["type"] for block in BLOCKS]
    assert message["stop_reason"] == "tool_use"
    assert_relayed(proxy, upstream, MESSAGES)


def test_tokens_are_counted(node: Driver, proxy: Proxy, upstream: StrictMessages) -> None:
    assert node.run(proxy.url, "count")["input_tokens"] > 0
    assert list(upstream.journal.only(COUNT).json()) == ["model", "messages"]


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", "BadRequestError"),
        (429, "rate_limit_error", "RateLimitError"),
        (529, "overloaded_error", "OverloadedError"),
    ],
)
def test_an_upstream_error_raises_its_own_class(
    node: Driver, status: int, kind: str, raised: str, proxy: Proxy, upstream: StrictMessages
) -> None:
    upstream.answer(lambda exchange: json_reply(error("No.", kind), status=status))
    caught = node.run(proxy.url, "message")["error"]
    assert (caught["kind"], caught["status"], caught["body"]) == (raised, status, error("No.", kind))


def test_a_stream_that_breaks_off_raises(node: Driver, proxy: Proxy, upstream: StrictMessages) -> None:
    message: Any = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    start = {"type": "message_start", "message": {**message, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    upstream.answer(lambda exchange: stream(event(start), cut=True))
    assert node.run(proxy.url, "stream")["error"]["body"]["error"]["type"] == "api_error"


def test_forty_tool_rounds_over_a_window_are_accepted(node: Driver) -> None:
    with proxy_before(StrictMessages(reader, window=WINDOW), strategy="mask", window=WINDOW) as (upstream, proxy):
        assert node.run(proxy.url, "agent") == 81
        assert_taken(proxy, upstream)
