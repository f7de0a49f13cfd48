"""The conversation that comes with the program."""

import json
from importlib.resources import files

import pytest

from proxy.commands.demo import first, is_planted, load
from proxy.endpoints.chat import ChatCounter
from proxy.replaying.play import request_ends
from proxy.replaying.recorded import Conversation
from proxy.tokens.counter import Tokenizers

TRIED = 2_000


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load()


def test_it_is_long_and_each_tool_message_answers_a_call(conversation: Conversation) -> None:
    counter = Tokenizers().for_model("gpt-4o", ChatCounter)
    sizes = [counter.message(message) for message in conversation.messages]
    assert sum(sizes) > 30_000
    assert max(sizes) < TRIED
    assert sum(message["role"] == "tool" for message in conversation.messages) > 100
    waiting: set[str] = set()
    for message in conversation.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message.get("tool_calls", [])}


def test_planted_facts_stand_early_only_and_in_no_question(conversation: Conversation) -> None:
    later = json.dumps(conversation.messages[turn_ends(conversation)[2] :])
    planted = [question for question in conversation.questions if is_planted(question)]
    assert len(planted) == 5
    for question in planted:
        assert question.evidence[0] not in later
    (question,) = [each for each in conversation.questions if not is_planted(each)]
    found = [i for i, message in enumerate(conversation.messages) if question.reaches(str(message.get("content")))]
    assert conversation.messages[found[0]]["role"] == "tool"
    assert found[-1] < len(conversation.messages) // 10
    assert not [question for question in conversation.questions if question.evidence[0] in question.text]


def turn_ends(conversation: Conversation) -> list[int]:
    """For each turn the number of messages with which it ends."""
    starts = [i for i, message in enumerate(conversation.messages) if message["role"] == "user"]
    return [*starts[1:], len(conversation.messages)]


def test_its_beginning_is_a_conversation_too_and_its_licence_beside_it(conversation: Conversation) -> None:
    short = first(conversation, 5)
    assert len(list(request_ends(short))) == 5
    assert short.messages[-1]["role"] == "assistant"
    assert first(conversation, None) is conversation
    assert first(conversation, 10_000) is conversation
    notice = files("proxy").joinpath("demo", "NOTICE").read_text("utf-8")
    for words in ("badlogic/pi-mono", "83378aad7e74", "MIT License", "Copyright (c)", "Permission is hereby granted"):
        assert words in notice
