"""LiteLLM as a library: `openai/…` models with an `api_base`."""

from collections.abc import Iterator
from typing import Any

import litellm
import pytest
import yaml

from tests.clients.cases import KEY, MODEL, OSLO, OURS, TOOL, ZURICH, tool_result, user
from tests.clients.guides import Guides, code, page_of
from tests.clients.litellm_state import litellm_tidied
from tests.support.proxy import Proxy, assert_relayed
from tests.support.replies import completion, error, stream, text_chunks, usage_chunk
from tests.support.signals import Signal
from tests.support.upstream import ScriptedUpstream

HI = [user("Grüezi 👋")]


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own use of pydantic


@pytest.fixture(autouse=True)
def tidied() -> Iterator[None]:
    with litellm_tidied():
        yield


@pytest.fixture
def ask(proxy: Proxy) -> Any:
    def ask(messages: Any = HI, **options: Any) -> Any:
        defaults = {"max_retries": 0, "extra_headers": OURS, "api_key": KEY}
        return litellm.completion(
            model=f"openai/{MODEL}", api_base=proxy.base_url, messages=messages, **{**defaults, **options}
        )

    return ask


def test_a_completion_arrives_with_our_response_headers(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion("Hallo", "Salü", tokens=(7, 3)))
    reply = ask(n=2)
    assert [choice.message.content for choice in reply.choices] == ["Hallo", "Salü"]
    assert reply.usage.prompt_tokens == 7
    headers = reply._hidden_params["additional_headers"]
    assert headers["llm_provider-x-condenser-action"] == "passed"
    assert_relayed(proxy, upstream)


def test_a_stream_arrives_while_it_is_written(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    gate = Signal()
    role, one, *rest = text_chunks("one two")
    upstream.reply(stream(role, one, gate, *rest, usage_chunk(5, 2)))
    chunks = ask(stream=True, stream_options={"include_usage": True})
    assert next(chunks).choices[0].delta.content == "one "
    gate.set()
    remaining = list(chunks)
    assert "".join(c.choices[0].delta.content or "" for c in remaining if c.choices) == "two"
    assert remaining[-1].usage.prompt_tokens == 5
    assert_relayed(proxy, upstream)


def test_a_parallel_tool_round_goes_there_and_back(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(completion(None, tool_calls=[ZURICH, OSLO]), completion("21 degrees"))
    message = ask(tools=[TOOL]).choices[0].message
    assert [call.id for call in message.tool_calls] == ["call_1", "call_2"]
    history = [*HI, message, tool_result(ZURICH, "21"), tool_result(OSLO, "9")]
    assert ask(history, tools=[TOOL]).choices[0].message.content == "21 degrees"
    assert_relayed(proxy, upstream)


def test_an_upstream_error_has_status_and_headers(ask: Any, proxy: Proxy, upstream: ScriptedUpstream) -> None:
    upstream.reply(error(429, "slow down", code="rate", headers=[("retry-after", "9")]))
    with pytest.raises(litellm.exceptions.RateLimitError, match="slow down") as caught:
        ask()
    assert caught.value.status_code == 429
    headers: Any = getattr(caught.value, "litellm_response_headers", {})
    assert headers["retry-after"] == "9"
    assert_relayed(proxy, upstream)


def test_an_overflow_of_the_upstream_is_recognised_as_one(ask: Any, upstream: ScriptedUpstream) -> None:
    message = "This model's maximum context length is 8 tokens. Please reduce the length."
    upstream.answer(lambda _: error(400, message, code="context_length_exceeded", param="messages"))
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        ask()


def test_its_guide_runs(guide: Guides) -> None:
    guide("litellm")


def test_a_gateway_with_the_settings_of_the_guide_asks_the_proxy(guide: Guides) -> None:
    models = yaml.safe_load(code(page_of("litellm"), "yaml", guide.proxy.url))["model_list"]
    reply: Any = litellm.router.Router(model_list=models).completion(model="gpt-4o", messages=HI)
    assert reply.choices[0].message.content == "echo: Grüezi 👋"
    assert {each.status for each in guide.proxy.journal.to()} == {200}
