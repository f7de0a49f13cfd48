"""The scripted model server, asked by the official client over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import openai
import pytest

from proxy.demo.client import Client
from proxy.demo.conversation import Conversation, load
from proxy.demo.measures import same_reply
from proxy.demo.model import MODEL, UNKNOWN, ScriptedModel
from proxy.demo.prompts import PromptCounter
from proxy.demo.server import serving
from proxy.tokens.counter import Tokenizers
from strategies.prompts import prompt

WINDOW = 2_048


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load().first(20)


@pytest.fixture(scope="module")
def base_url(conversation: Conversation) -> Iterator[str]:
    counter = PromptCounter(Tokenizers().for_model(MODEL))
    with serving(ScriptedModel(conversation, WINDOW, counter).app) as url:
        yield url


@pytest.fixture
def client(base_url: str) -> Iterator[Client]:
    with closing(Client(base_url, "any", MODEL, numbered=False)) as client:
        yield client


def test_it_streams_the_recorded_reply_with_its_calls(client: Client, conversation: Conversation) -> None:
    for step in list(conversation.steps())[:6]:
        reply = client.ask(step.number, step.messages, conversation.tools)
        assert same_reply(step.reply, reply.message)


def test_it_finds_the_reply_by_the_last_message_alone(client: Client, conversation: Conversation) -> None:
    step = list(conversation.steps())[-1]
    reply = client.ask(1, step.messages[-2:], conversation.tools)
    assert same_reply(step.reply, reply.message)


def test_it_knows_no_answer_to_what_is_not_in_its_script(client: Client, conversation: Conversation) -> None:
    reply = client.ask(1, [{"role": "user", "content": "Who are you?"}], conversation.tools)
    assert reply.message["content"] == UNKNOWN


def test_a_prompt_over_its_window_is_refused_as_openai_does(client: Client, conversation: Conversation) -> None:
    step = list(conversation.steps())[-1]
    reply = client.ask(step.number, step.messages, conversation.tools)
    assert reply.overflow
    assert reply.problem.startswith(f"400 context_length_exceeded: This model's maximum context length is {WINDOW}")


def test_a_summarizers_prompt_is_answered_with_a_record_and_its_usage(base_url: str) -> None:
    system = prompt("summary").replace("{max_words}", "60")
    history = '<history>\n<message index="0" role="user">\nThe port is 48613.\n</message>\n</history>'
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        completion = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": history}],
            max_completion_tokens=100,
        )
    assert completion.choices[0].message.content == "The user said: The port is 48613."
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens


def test_usage_is_streamed_to_those_who_ask_for_it(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Hello"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


def test_a_server_that_cannot_be_reached_is_a_problem_and_no_overflow() -> None:
    with closing(Client("http://127.0.0.1:9/v1", "any", MODEL, numbered=False)) as client:
        reply = client.ask(1, [{"role": "user", "content": "Hello"}], [])
    assert reply.problem.startswith("APIConnectionError")
    assert not reply.overflow
