"""The official anthropic package for Node, run by node/messages.mjs."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.test_anthropic_python import BLOCKS, assert_taken, proxy, upstream
from tests.clients.test_openai_node import HERE, NODE, answering
from tests.http.test_messages import WINDOW, reader
from tests.support.messages_upstream import COUNT, MESSAGES, StrictMessages, error
from tests.support.prefixes import event
from tests.support.proxy import Proxy, assert_relayed, proxy_before
from tests.support.replies import json_reply, stream

Run = Callable[[Proxy, str], Any]
__all__ = ["proxy", "upstream"]
pytestmark = pytest.mark.skipif(
    NODE is None or not (HERE / "node_modules" / "@anthropic-ai" / "sdk").is_dir(),
    reason=f"the Node client of Anthropic is NOT TESTED: needs node and `npm ci` in {HERE} (make setup)",
)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """What a scenario came to: its value, or the error of the SDK as `{"error": …}`."""
    with answering("messages.mjs") as ask:

        def outcome(proxy: Proxy, scenario: str) -> Any:
            found = ask({"baseURL": proxy.url, "scenario": scenario})
            return found.get("ok", found)

        yield outcome


@pytest.mark.parametrize("scenario", ["message", "stream"])
def test_a_message_crosses_unchanged(run: Run, scenario: str, proxy: Proxy, upstream: StrictMessages) -> None:
    message = run(proxy, scenario)
    assert [block["type"] for block in message["content"]] == [block["type"] for block in BLOCKS]
    assert message["stop_reason"] == "tool_use"
    assert_relayed(proxy, upstream, MESSAGES)


def test_tokens_are_counted(run: Run, proxy: Proxy, upstream: StrictMessages) -> None:
    assert run(proxy, "count")["input_tokens"] > 0
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
    run: Run, status: int, kind: str, raised: str, proxy: Proxy, upstream: StrictMessages
) -> None:
    upstream.answer(lambda exchange: json_reply(error("No.", kind), status=status))
    caught = run(proxy, "message")["error"]
    assert (caught["kind"], caught["status"], caught["body"]) == (raised, status, error("No.", kind))


def test_a_stream_that_breaks_off_raises(run: Run, proxy: Proxy, upstream: StrictMessages) -> None:
    message: Any = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    start = {"type": "message_start", "message": {**message, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    upstream.answer(lambda exchange: stream(event(start), cut=True))
    assert run(proxy, "stream")["error"]["body"]["error"]["type"] == "api_error"


def test_forty_tool_rounds_over_a_window_are_accepted(run: Run) -> None:
    with proxy_before(StrictMessages(reader, window=WINDOW), strategy="mask", window=WINDOW) as (upstream, proxy):
        assert run(proxy, "agent") == 81
        assert_taken(proxy, upstream)
