"""The conversation that comes with the program."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from proxy.demo.conversation import Conversation, load
from proxy.demo.model import MODEL
from proxy.demo.prompts import PromptCounter
from proxy.tokens.counter import Tokenizers

TRIED = 2_000


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load()


def test_it_is_over_thirty_thousand_tokens_with_tool_calls(conversation: Conversation) -> None:
    counter = PromptCounter(Tokenizers().for_model(MODEL))
    assert counter.prompt({"messages": conversation.messages, "tools": conversation.tools}) > 30_000
    assert sum(message["role"] == "tool" for message in conversation.messages) > 100


def test_no_message_is_so_large_that_a_small_window_could_not_hold_it(conversation: Conversation) -> None:
    counter = PromptCounter(Tokenizers().for_model(MODEL))
    assert max(map(counter.message, conversation.messages)) < TRIED


def test_every_tool_message_answers_a_call_of_the_message_that_opened_its_round(conversation: Conversation) -> None:
    waiting: set[str] = set()
    for message in conversation.messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            waiting = {call["id"] for call in message.get("tool_calls", [])}


def test_every_reply_can_be_found_by_the_message_before_it(conversation: Conversation) -> None:
    last = [step.messages[-1] for step in conversation.steps()]
    assert len({message.get("tool_call_id") or message["content"] for message in last}) == len(last)


def test_planted_facts_stand_in_the_turn_that_is_named_and_in_no_later_message(conversation: Conversation) -> None:
    users = [message["content"] for message in conversation.messages if message["role"] == "user"]
    later = json.dumps([message for message in conversation.messages if message["content"] not in users[:3]])
    planted = [question for question in conversation.questions if question.planted]
    assert len(planted) == 5
    for question in planted:
        assert question.evidence in users[int(question.told_in.removeprefix("turn ")) - 1]
        assert question.evidence not in later


def test_what_was_not_planted_is_in_an_early_tool_result(conversation: Conversation) -> None:
    (question,) = [question for question in conversation.questions if not question.planted]
    found = [i for i, message in enumerate(conversation.messages) if question.evidence in json.dumps(message)]
    assert conversation.messages[found[0]]["role"] == "tool"
    assert found[-1] < len(conversation.messages) // 10


def test_no_question_gives_its_own_answer_away(conversation: Conversation) -> None:
    assert not [question for question in conversation.questions if question.evidence in question.text]


def test_its_beginning_is_a_conversation_too(conversation: Conversation) -> None:
    short = conversation.first(5)
    steps = list(short.steps())
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert short.messages[-1] == steps[-1].reply
    assert conversation.first(None) is conversation
    assert conversation.first(10_000) is conversation


def test_turns_are_counted_by_user_messages(conversation: Conversation) -> None:
    assert [step.turn for step in conversation.first(6).steps()] == [1, 2, 3, 4, 4, 4]


def test_source_commit_and_licence_stand_beside_it() -> None:
    notice = files("proxy.demo").joinpath("NOTICE").read_text("utf-8")
    for words in ("badlogic/pi-mono", "83378aad7e74", "MIT License", "Copyright (c)", "Permission is hereby granted"):
        assert words in notice


def test_nobodys_home_directory_is_in_it(conversation: Conversation) -> None:
    assert "/Users/" not in json.dumps(conversation.messages)
