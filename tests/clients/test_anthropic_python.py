"""The official anthropic package for Python: a changed `base_url` is the only change."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.clients.guides import Guides
from tests.http.test_messages import MODEL, RULE, WINDOW, reader, views
from tests.http.test_messages import TOOLS as _TOOLS
from tests.support.messages_upstream import COUNT, MESSAGES, StrictMessages, error, web_search
from tests.support.messages_upstream import text as said
from tests.support.messages_upstream import thinking as thought
from tests.support.messages_upstream import tool_use as call
from tests.support.prefixes import event
from tests.support.proxy import Proxy, assert_relayed, running_proxy
from tests.support.recording import Exchange
from tests.support.replies import Reply, json_reply, stream

TOOLS: list[Any] = list(_TOOLS)
HI: list[Any] = [{"role": "user", "content": "Grüezi 👋"}]
BLOCKS = [
    thought("Well."),
    *web_search("moss", "https://moss.example"),
    said("Look: 苔 🌱"),
    call("read", {"path": "a"}),
]


@pytest.fixture
def upstream() -> Iterator[StrictMessages]:
    with StrictMessages(lambda body: BLOCKS) as upstream:
        yield upstream


@pytest.fixture
def proxy(upstream: StrictMessages) -> Iterator[Proxy]:
    with running_proxy(upstream.url, strategy="half-window", window=200_000) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Anthropic]:
    with Anthropic(base_url=proxy.url, api_key="k", max_retries=0) as client:
        yield client


def ask(client: Anthropic, **more: Any) -> Any:
    asked = {"model": MODEL, "max_tokens": 100, "tools": TOOLS, "messages": HI, **more}
    return client.messages.create(**asked)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_message_crosses_unchanged(streamed: bool, client: Anthropic, proxy: Proxy, upstream: StrictMessages) -> None:
    if streamed:
        with client.messages.stream(model=MODEL, max_tokens=100, tools=TOOLS, messages=HI) as streaming:
            message: Any = streaming.get_final_message()
    else:
        message = ask(client, system=[{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}])
    assert [block.type for block in message.content] == [block["type"] for block in BLOCKS]
    assert message.stop_reason == "tool_use"
    assert_relayed(proxy, upstream, MESSAGES)


def test_tokens_are_counted(client: Anthropic, upstream: StrictMessages) -> None:
    count = client.messages.count_tokens(model=MODEL, messages=HI)
    assert count.input_tokens > 0
    assert upstream.journal.only(COUNT).json() == {"model": MODEL, "messages": HI}


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
def test_an_error_of_the_upstream_raises_its_own_class(
    status: int, kind: str, raised: type[Exception], client: Anthropic, upstream: StrictMessages
) -> None:
    upstream.answer(lambda exchange: json_reply(error("No.", kind), status=status))
    with pytest.raises(raised, match="No"):
        ask(client)


def test_an_error_in_a_stream_raises(client: Anthropic, upstream: StrictMessages) -> None:
    def broken(exchange: Exchange) -> Reply:
        message: Any = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
        start = {"type": "message_start", "message": message}
        begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return stream(event(start), event(begun), event(error("Overloaded", "overloaded_error")), done=False)

    upstream.answer(broken)
    with (
        pytest.raises(anthropic.APIStatusError, match="Overloaded"),
        client.messages.stream(model=MODEL, max_tokens=100, messages=HI) as streaming,
    ):
        streaming.get_final_message()


def test_an_upstream_that_is_gone_raises_the_class_of_a_server_error(upstream: StrictMessages) -> None:
    with (
        running_proxy("http://127.0.0.1:9") as proxy,
        Anthropic(base_url=proxy.url, api_key="k", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.InternalServerError) as raised:
            ask(client)
        assert json.loads(raised.value.response.content)["error"]["type"] == "api_error"


def test_a_prompt_that_nothing_can_mend_raises_a_bad_request() -> None:
    with (
        StrictMessages(window=100) as upstream,
        running_proxy(upstream.url, strategy="half-window") as proxy,
        Anthropic(base_url=proxy.url, api_key="k", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
    ):
        ask(client, messages=[{"role": "user", "content": "water " * 9_000}])


def test_forty_tool_rounds_over_a_window_are_accepted() -> None:
    with (
        StrictMessages(reader, window=WINDOW) as upstream,
        running_proxy(upstream.url, strategy="half-window", window=WINDOW) as proxy,
        Anthropic(base_url=proxy.url, api_key="k", max_retries=0) as client,
    ):
        messages: list[Any] = [{"role": "user", "content": RULE}]
        for step in range(40):
            with client.messages.stream(model=MODEL, max_tokens=100, tools=TOOLS, messages=messages) as streaming:
                message = streaming.get_final_message()
            messages.append({"role": "assistant", "content": message.content})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": f"line {step} of a file. " * 150}
                for block in message.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
            proxy.quiet()
        assert_taken(proxy, upstream)


def assert_taken(proxy: Proxy, upstream: StrictMessages) -> None:
    """All views were taken, and each begins with the one before unless a condensation came between."""
    assert upstream.refusals == []
    actions = [exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(MESSAGES)]
    assert "condensed" in actions
    for action, (before, after) in zip(actions[1:], views(upstream), strict=True):
        assert action == "condensed" or after[: len(before)] == before


def test_its_guide_runs(guide: Guides) -> None:
    guide("anthropic")
