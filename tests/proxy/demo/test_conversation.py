"""The conversation that comes with the program."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from proxy.commands.demo import first, is_planted, load, turn_of
from proxy.endpoints.chat import ChatCounter
from proxy.replaying.play import request_ends
from proxy.replaying.recorded import Conversation
from proxy.tokens.counter import Tokenizers

TRIED = 2_000


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load()


def test_it_is_over_thirty_thousand_tokens_with_tool_calls(conversation: Conversation) -> None:
    counter = Tokenizers().for_model("gpt-4o", ChatCounter)
    sizes = [counter.message(message) for message in conversation.messages]
    assert sum(sizes) > 30_000
    assert max(sizes) < TRIED
    assert sum(message["role"] == "tool" for message in conversation.messages) > 100


def test_every_tool_message_answers_a_call_of_its_round(conversation: Conversation) -> None:
    waiting: set[str] = set()
    for message in conversation.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message.get("tool_calls", [])}


def test_planted_facts_stand_in_the_first_turns_and_in_no_later_message(conversation: Conversation) -> None:
    later = json.dumps(conversation.messages[turn_ends(conversation)[2] :])
    planted = [question for question in conversation.questions if is_planted(question)]
    assert len(planted) == 5
    for question in planted:
        assert question.evidence[0] not in later


def turn_ends(conversation: Conversation) -> list[int]:
    """For each turn the number of messages with which it ends."""
    starts = [i for i, message in enumerate(conversation.messages) if message["role"] == "user"]
    return [*starts[1:], len(conversation.messages)]


def test_what_was_not_planted_is_in_an_early_tool_result(conversation: Conversation) -> None:
    (question,) = [each for each in conversation.questions if not is_planted(each)]
    found = [i for i, message in enumerate(conversation.messages) if question.reaches(str(message.get("content")))]
    assert conversation.messages[found[0]]["role"] == "tool"
    assert found[-1] < len(conversation.messages) // 10


def test_no_question_gives_its_own_answer_away(conversation: Conversation) -> None:
    assert not [question for question in conversation.questions if question.evidence[0] in question.text]


def test_its_beginning_is_a_conversation_too(conversation: Conversation) -> None:
    short = first(conversation, 5)
    assert len(list(request_ends(short))) == 5
    assert short.messages[-1]["role"] == "assistant"
    assert first(conversation, None) is conversation
    assert first(conversation, 10_000) is conversation


def test_turns_are_counted_by_user_messages(conversation: Conversation) -> None:
    ends = list(request_ends(conversation))
    assert [turn_of(conversation, end) for end in ends[:6]] == [1, 2, 3, 4, 4, 4]


def test_source_commit_and_licence_stand_beside_it() -> None:
    notice = files("proxy").joinpath("demo", "NOTICE").read_text("utf-8")
    for words in ("badlogic/pi-mono", "83378aad7e74", "MIT License", "Copyright (c)", "Permission is hereby granted"):
        assert words in notice


def test_nobodys_home_directory_is_in_it(conversation: Conversation) -> None:
    assert "/Users/" not in json.dumps(conversation.messages)
