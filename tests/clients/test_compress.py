"""Frameworks that ask `POST /v1/compress` by the code of its guide: the model gets the view."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from openai import AsyncOpenAI

from tests.clients.cases import KEY, MODEL
from tests.clients.guides import ADDRESS, NODE_FOLDER, blocks, run_node
from tests.clients.test_gateway import GATEWAY, PAGE
from tests.support.proxy import Proxy, running_proxy
from tests.support.recording import CHAT
from tests.support.responses_upstream import RESPONSES, StrictResponses
from tests.support.stage import agent
from tests.support.upstream import ScriptedUpstream

WINDOW, ROUNDS = 4_096, 60
QUESTION = "Are all doors fixed?"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy that no model stands behind: nothing is sent to it."""
    with (
        ScriptedUpstream() as nobody,
        running_proxy(nobody.url, as_shipped=True, window=WINDOW, single_user=True) as made,
    ):
        yield made
        assert not nobody.journal


def code(word: str, proxy: Proxy) -> str:
    """The block of the guide in which a word stands."""
    (block,) = [each for each in blocks(PAGE) if word in each.text]
    return block.text.replace(ADDRESS, proxy.url)


def test_the_input_filter_of_the_openai_agents_sdk(proxy: Proxy) -> None:
    scope: dict[str, Any] = {}
    exec(compile(code("ModelInputData", proxy), "guide", "exec"), scope)

    async def run(url: str) -> None:
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            reader = Agent("Reader", model=OpenAIResponsesModel(MODEL, client))
            config = RunConfig(call_model_input_filter=scope["condense"], tracing_disabled=True)
            for question in (QUESTION, "And painted?"):
                await Runner.run(reader, [*items(), {"role": "user", "content": question}], run_config=config)

    with StrictResponses(window=WINDOW) as upstream:
        asyncio.run(run(upstream.base_url))
        first, second = (exchange.json()["input"] for exchange in upstream.journal.to(RESPONSES))
    assert upstream.refusals == []
    assert first[:-1] == second[:-1]
    assert (first[-1]["content"], second[-1]["content"]) == (QUESTION, "And painted?")
    assert len(json.dumps(first)) < len(json.dumps(items())) // 2


def items() -> list[Any]:
    """The list of an agent, as Responses has it."""
    found: list[Any] = []
    for each in agent(ROUNDS)[1:]:
        if each["role"] == "tool":
            found.append({"type": "function_call_output", "call_id": each["tool_call_id"], "output": each["content"]})
        elif each["role"] == "user":
            found.append({"role": "user", "content": each["content"]})
        else:
            called = each["tool_calls"][0]
            found.append({"type": "function_call", "call_id": called["id"], **called["function"]})
    return found


LANGCHAIN = """
import json, sys
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

url, messages = sys.argv[1], json.load(sys.stdin)
agent = create_agent(ChatOpenAI(model="gpt-4o", base_url=url, api_key="sk-tests"), [], middleware=[condense])
print(len(agent.invoke({"messages": messages})["messages"]))
"""


@pytest.mark.skipif(not GATEWAY.exists(), reason="LangChain's middleware is NOT TESTED: `make test` installs it")
def test_the_middleware_of_langchain(proxy: Proxy) -> None:
    program = code("wrap_model_call", proxy) + LANGCHAIN
    messages = [*agent(ROUNDS), {"role": "user", "content": QUESTION}]
    with ScriptedUpstream() as upstream:
        done = subprocess.run(
            [str(GATEWAY), "-c", program, upstream.base_url],
            input=json.dumps(messages),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        sent = upstream.journal.only(CHAT).json()["messages"]
    assert int(done.stdout) == len(messages) + 1  # the state keeps all
    assert sent[-1]["content"] == QUESTION
    assert len(sent) < len(messages)


VERCEL = """
import { createOpenAI } from '@ai-sdk/openai';
import { generateText } from 'ai';

const { url, messages } = JSON.parse(process.env.GIVEN);
const model = createOpenAI({ baseURL: url, apiKey: 'sk-tests' }).chat('gpt-4o');
const { text } = await generateText({ model, messages, prepareStep: condense });
console.log(text);
"""


@pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_FOLDER / "node_modules" / "ai").is_dir(),
    reason=f"the AI SDK is NOT TESTED: needs node and `npm ci` in {NODE_FOLDER} (make setup)",
)
def test_the_step_of_the_ai_sdk(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [*own(agent(ROUNDS)), {"role": "user", "content": QUESTION}]
    with ScriptedUpstream() as upstream:
        monkeypatch.setenv("GIVEN", json.dumps({"url": upstream.base_url, "messages": messages}))
        assert QUESTION in run_node(code("const condense", proxy) + VERCEL)
        sent = upstream.journal.only(CHAT).json()["messages"]
    assert len(sent) == len(messages)
    results = [each["content"] for each in sent if each["role"] == "tool"]
    assert any(each.startswith("[result of a tool left out: ") for each in results)
    assert results[-1] == agent(ROUNDS)[-1]["content"]


def own(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """A list as the AI SDK has it."""
    for each in messages:
        if each["role"] == "tool":
            output = {"type": "text", "value": each["content"]}
            part = {"type": "tool-result", "toolCallId": each["tool_call_id"], "toolName": "run", "output": output}
            yield {"role": "tool", "content": [part]}
        elif each["role"] == "assistant":
            call = {"type": "tool-call", "toolCallId": each["tool_calls"][0]["id"], "toolName": "run", "input": {}}
            yield {"role": "assistant", "content": [call]}
        else:
            yield each
