"""One recorded conversation in every protocol: strict servers take each request of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.commands.demo import load
from proxy.replaying.play import Player, RecordedClient, open_replay_proxy, request_ends
from proxy.replaying.recorded import Conversation, in_protocol
from proxy.settings import load_settings
from tests.support import strict_messages, strict_responses
from tests.support.transcripts import assistant, call, tool, user

CALLED = Conversation(
    "a",
    [
        {"role": "system", "content": "Be brief."},
        user("Read both."),
        assistant("I look.", call("c1", "read", {"path": "a"}), call("c2", "read", {"path": "b"})),
        tool("c1", "one"),
        tool("c2", "two"),
        assistant("They say one and two."),
        user("Thanks."),
    ],
    [{"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}}],
)


def requests_of(conversation: Conversation) -> list[dict[str, Any]]:
    client = RecordedClient(conversation, "m")
    bodies = [client.request(end).body for end in request_ends(conversation)]
    return [{**body.values, body.endpoint.list_member: [each.value for each in body.elements]} for body in bodies]


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_each_protocol_has_the_same_requests_and_questions(protocol: str) -> None:
    chat, conversation = load(), load(protocol)
    assert len(list(request_ends(conversation))) == len(list(request_ends(chat)))
    text = conversation.endpoint.dialect.text
    for asked, original in zip(conversation.questions, chat.questions, strict=True):
        assert asked.evidence == original.evidence
        assert asked.reaches("\n".join(text(conversation.messages[place]) for place in asked.places))


def test_strict_servers_take_every_request_of_the_demo() -> None:
    assert {strict_messages.refusal_of({"max_tokens": 9, **body}) for body in requests_of(load("messages"))} == {""}
    assert {strict_responses.refusal_of(body) for body in requests_of(load("responses"))} == {None}


def test_results_of_one_round_follow_the_protocols_form() -> None:
    messages, responses = in_protocol(CALLED, "messages"), in_protocol(CALLED, "responses")
    assert [len(each["content"]) for each in messages.messages] == [1, 3, 2, 1, 1]
    kinds = [each.get("type") for each in responses.messages]
    assert kinds == ["message", "message", *["function_call"] * 2, *["function_call_output"] * 2, "message", "message"]
    assert (messages.members, responses.members) == ({"system": "Be brief."}, {"instructions": "Be brief."})
    assert [messages.tools[0]["name"], responses.tools[0]["name"]] == ["read", "read"]


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_a_system_prompt_outside_of_the_list_is_counted(protocol: str) -> None:
    async def sizes() -> list[int]:
        async with open_replay_proxy(load_settings(store={"url": "memory://"})) as built:
            player, whole = Player(built, "", 8_192), in_protocol(CALLED, protocol)
            return [player.size(each) for each in (whole, replace(whole, members={}))]

    with_system, without = asyncio.run(sizes())
    assert with_system > without
