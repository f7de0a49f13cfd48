"""Agents of LangChain and pydantic-ai at `/v1/responses`: far past the window."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from tests.clients.cases import KEY
from tests.http.test_responses import MODEL, RULE, SUMMARY, is_own
from tests.support.proxy import Proxy, running_proxy
from tests.support.responses_upstream import RESPONSES, StrictResponses, function_call, message, reasoning

WINDOW, ROUNDS = 8_000, 14


class Reader:
    """A model that reads a file or two in each reply, and then is done."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, body: Mapping[str, Any]) -> Sequence[dict[str, Any]] | str:
        if is_own(body):
            return f"<summary>{SUMMARY}</summary>"
        self.step += 1
        if self.step > ROUNDS:
            return [reasoning("Done."), message("All done.")]
        calls = [function_call("read", {"path": f"{place}/{self.step}.py"}) for place in range(1 + self.step % 2)]
        return [reasoning(f"Step {self.step}."), message("I look."), *calls]


@contextmanager
def upstream_and_proxy() -> Iterator[tuple[StrictResponses, Proxy]]:
    settings: Any = {"strategy": "mask+half-window", "window": WINDOW}
    with StrictResponses(Reader(), window=WINDOW) as upstream, running_proxy(upstream.url, **settings) as proxy:
        yield upstream, proxy
        actions = {exchange.response_header("x-condenser-action") for exchange in proxy.journal.to(RESPONSES)}
        assert actions == {"passed", "condensed", "replayed"}
        assert upstream.refusals == []


def contents(path: str) -> str:
    return f"{path}: " + "line of a file. " * 200


def test_langchain() -> None:
    @tool
    def read(path: str) -> str:
        """Reads a file."""
        return contents(path)

    with upstream_and_proxy() as (_, proxy), openai.DefaultHttpxClient() as http_client:
        options: dict[str, Any] = {"base_url": proxy.base_url, "api_key": KEY, "model": MODEL}
        model = ChatOpenAI(**options, http_client=http_client, use_responses_api=True).bind_tools([read])
        messages: list[BaseMessage] = [HumanMessage(RULE)]
        while True:
            reply = model.invoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                break
            calls = reply.tool_calls
            messages += [ToolMessage(read.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]
        assert reply.text == "All done."


@pytest.mark.anyio
async def test_pydantic_ai() -> None:
    with upstream_and_proxy() as (_, proxy):
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=KEY, max_retries=0) as client:
            model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent = Agent(model)

            @agent.tool_plain
            def read(path: str) -> str:
                """Reads a file."""
                return contents(path)

            result = await agent.run(RULE, usage_limits=UsageLimits(request_limit=ROUNDS + 1))
        assert result.output == "All done."
