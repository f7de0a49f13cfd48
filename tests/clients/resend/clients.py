"""Every client holds every conversation, each in the ways its users resend a reply.

A way is a function of a base URL, the way's name and a case's name. It sends the question, appends the reply as
its users do, answers tool calls with `RESULT`, and sends the whole list again.
"""

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import litellm
import openai
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.cases import KEY
from tests.clients.litellm_state import litellm_tidied
from tests.clients.resend.cases import CASES, FOLLOW_UP, QUESTION, RESULT, TOOL, TOOL_NAME, TOOL_SCHEMA, WAY
from tests.support.replies import Json

NODE_FOLDER = Path(__file__).parent / "node"
NODE = shutil.which("node")
NODE_READY = NODE is not None and (NODE_FOLDER / "node_modules" / "ai").is_dir()
ON_NODE = ("openai-node", "ai-sdk-openai", "ai-sdk-openai-compatible")
NODE_BOUND = 50.0  # seconds one Node client has for all its conversations

Way = Callable[[str, str, str], None]
Raised = dict[tuple[str, str], str]  # (way, case) -> what the client raised over the reply, so that it resent nothing


def hold(ways: Mapping[str, Way], base_url: str) -> Raised:
    """Hold every conversation in every way; an agent that stops over a reply does not stop the others."""
    raised: Raised = {}
    for way, converse in ways.items():
        for case in CASES:
            try:
                converse(base_url, way, case)
            except AgentRunError as error:
                raised[way, case] = type(error).__name__
    return raised


@cache
def _tls() -> ssl.SSLContext:
    """Shared, because each new client would read the machine's certificates again."""
    return ssl.create_default_context()


def _answers(calls: Any) -> list[Any]:
    """What the user appends after the reply: a result per call, or the next question."""
    results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in calls or []]
    return results or [{"role": "user", "content": FOLLOW_UP}]


# -- openai-python -----------------------------------------------------------------------------------------

Ask = Callable[[openai.OpenAI, Json], Any]


def _openai_python(ask: Ask, append: Callable[[Any], Any]) -> Way:
    def converse(base_url: str, way: str, case: str) -> None:
        options: Json = {"api_key": KEY, "max_retries": 0, "default_headers": {WAY: way}}
        with (
            openai.DefaultHttpxClient(verify=_tls()) as http_client,
            openai.OpenAI(base_url=base_url, http_client=http_client, **options) as client,
        ):
            messages: list[Any] = [{"role": "user", "content": QUESTION}]
            body: Json = {"model": case, "messages": messages, "tools": [TOOL]}
            message = ask(client, body)
            messages += [append(message), *_answers(message.tool_calls)]
            client.chat.completions.create(**body)

    return converse


def _created(client: openai.OpenAI, body: Json) -> Any:
    return client.chat.completions.create(**body).choices[0].message


def _streamed(client: openai.OpenAI, body: Json) -> Any:
    with client.chat.completions.stream(**body) as events:
        return events.get_final_completion().choices[0].message


OPENAI_PYTHON = {
    "object": _openai_python(_created, lambda message: message),
    "model_dump": _openai_python(_created, lambda message: message.model_dump()),
    "model_dump_exclude_none": _openai_python(_created, lambda message: message.model_dump(exclude_none=True)),
    "to_dict": _openai_python(_created, lambda message: message.to_dict()),
    "stream": _openai_python(_streamed, lambda message: message),
    "stream_model_dump": _openai_python(_streamed, lambda message: message.model_dump()),
}

# -- LangChain ---------------------------------------------------------------------------------------------


def _langchain(ask: Callable[[Any, list[BaseMessage]], Any], **options: Any) -> Way:
    def converse(base_url: str, way: str, case: str) -> None:
        with openai.DefaultHttpxClient(verify=_tls()) as http_client:
            shared: Json = {"api_key": KEY, "max_retries": 0, "default_headers": {WAY: way}, "http_client": http_client}
            asked: Json = {"base_url": base_url, "model": case, **shared, **options}
            model = ChatOpenAI(**asked).bind_tools([TOOL])
            history: list[BaseMessage] = [HumanMessage(QUESTION)]
            reply = ask(model, history)
            calls = [*reply.tool_calls, *reply.invalid_tool_calls]
            results: list[BaseMessage] = [
                ToolMessage(RESULT, tool_call_id=call["id"], name=call["name"]) for call in calls
            ]
            model.invoke([*history, reply, *(results or [HumanMessage(FOLLOW_UP)])])

    return converse


def _added_up(model: Any, history: list[BaseMessage]) -> Any:
    first, *rest = model.stream(history)
    for chunk in rest:
        first = first + chunk
    return first


LANGCHAIN = {
    "invoke": _langchain(lambda model, history: model.invoke(history)),
    "stream": _langchain(_added_up),
    "invoke_output_version_v1": _langchain(lambda model, history: model.invoke(history), output_version="v1"),
    "stream_output_version_v1": _langchain(_added_up, output_version="v1"),
}

# -- LiteLLM -----------------------------------------------------------------------------------------------


def _litellm(append: Callable[[Any], Any], *, stream: bool = False) -> Way:
    def converse(base_url: str, way: str, case: str) -> None:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        options: Json = {"api_base": base_url, "api_key": KEY, "max_retries": 0, "extra_headers": {WAY: way}}
        body: Json = {"model": f"openai/{case}", "messages": messages, "tools": [TOOL], **options}
        reply: Any = litellm.completion(**body, stream=stream)
        if stream:
            reply = litellm.stream_chunk_builder(list(reply))
        message = reply.choices[0].message
        messages += [append(message), *_answers(message.tool_calls)]
        litellm.completion(**body)

    return converse


LITELLM = {
    "object": _litellm(lambda message: message),
    "model_dump": _litellm(lambda message: message.model_dump()),
    "json": _litellm(lambda message: message.json()),
    "stream": _litellm(lambda message: message, stream=True),
    "stream_model_dump": _litellm(lambda message: message.model_dump(), stream=True),
}


def _hold_litellm(base_url: str) -> Raised:
    with litellm_tidied():
        return hold(LITELLM, base_url)


# -- pydantic-ai -------------------------------------------------------------------------------------------

Run = Callable[[Agent[None, str]], Awaitable[list[ModelMessage]]]


def _looked_up(**_: object) -> str:
    return RESULT


def _pydantic_ai(run: Run) -> Way:
    async def converse(base_url: str, way: str, case: str) -> None:
        options: Json = {"api_key": KEY, "max_retries": 0, "default_headers": {WAY: way}}
        async with (
            openai.DefaultAsyncHttpxClient(verify=_tls()) as http_client,
            openai.AsyncOpenAI(base_url=base_url, http_client=http_client, **options) as client,
        ):
            tool: Tool[None] = Tool.from_schema(_looked_up, TOOL_NAME, "The weather.", TOOL_SCHEMA)
            agent = Agent(OpenAIChatModel(case, provider=OpenAIProvider(openai_client=client)), tools=[tool])
            await agent.run(FOLLOW_UP, message_history=await run(agent))

    return lambda base_url, way, case: asyncio.run(converse(base_url, way, case))


async def _agent_run(agent: Agent[None, str]) -> list[ModelMessage]:
    return (await agent.run(QUESTION)).all_messages()


async def _agent_stream(agent: Agent[None, str]) -> list[ModelMessage]:
    async with agent.run_stream(QUESTION) as answer:
        await answer.get_output()
        return answer.all_messages()


async def _agent_stored(agent: Agent[None, str]) -> list[ModelMessage]:
    """The history as an application keeps it in a database between two turns."""
    return ModelMessagesTypeAdapter.validate_json((await agent.run(QUESTION)).all_messages_json())


PYDANTIC_AI = {
    "run": _pydantic_ai(_agent_run),
    "run_stream": _pydantic_ai(_agent_stream),
    "all_messages_json": _pydantic_ai(_agent_stored),
}

# -- Node --------------------------------------------------------------------------------------------------


def _node(name: str) -> Callable[[str], Raised]:
    def held(base_url: str) -> Raised:
        assert NODE is not None
        command = [NODE, "driver.mjs", base_url, name]
        run = subprocess.run(
            command,
            cwd=NODE_FOLDER,
            env={"PATH": os.environ["PATH"]},
            input=json.dumps(_plan()),
            capture_output=True,
            text=True,
            timeout=NODE_BOUND,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return {}

    return held


def _plan() -> Json:
    shared: Json = {"way": WAY, "question": QUESTION, "followUp": FOLLOW_UP, "tool": TOOL, "result": RESULT}
    return {"cases": list(CASES), **shared}


CLIENTS: Mapping[str, Callable[[str], Raised]] = {
    "openai-python": partial(hold, OPENAI_PYTHON),
    "langchain": partial(hold, LANGCHAIN),
    "litellm": _hold_litellm,
    "pydantic-ai": partial(hold, PYDANTIC_AI),
    **{name: _node(name) for name in ON_NODE},
}
