"""Conversations through the real driver in every protocol, its store in memory; only the model is a script."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.bodies.message_cache import MessageCache
from proxy.bodies.wire import Body
from proxy.commands.demo import load
from proxy.commands.replaying.measures import ReplayedConversation, ReplayedRequest
from proxy.commands.replaying.play import Player, Playing, RecordedClient, open_replay_proxy, request_ends
from proxy.commands.replaying.recorded import Conversation, Question, in_protocol
from proxy.reasons import Action
from proxy.settings import load_settings
from strategies.core.economics import Prices
from tests.support import strict_messages, strict_responses
from tests.support.transcripts import assistant, call, tool, user

WINDOW = 1_024
SECRET = "The number of the locker is 4711."


def questions_and_answers(turns: int, words: int = 40) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for i in range(turns):
        messages.append({"role": "user", "content": f"Question {i}: " + "why is that so? " * (words // 4)})
        messages.append({"role": "assistant", "content": f"Answer {i}: " + "because of this. " * (words // 4)})
    return messages


def question(messages: list[dict[str, Any]], place: int) -> Question:
    return Question("?", [messages[place]["content"]], [place])


def play(conversation: Conversation, strategy: str, window: int = WINDOW) -> ReplayedConversation:
    async def _play() -> ReplayedConversation:
        async with open_replay_proxy(load_settings(store={"url": "memory://"}, memory={"default": "off"})) as built:
            return await Playing(Player(built, "", window), conversation, strategy, f"0/{strategy}").play()

    return asyncio.run(_play())


def test_a_request_without_reply_or_room_is_none_or_an_overflow() -> None:
    opening = [{"role": "assistant", "content": "Hello, how can I help?"}, *questions_and_answers(2)]
    assert list(request_ends(Conversation("a", opening))) == [3, 5]
    huge = [{"role": "user", "content": "word " * 3 * WINDOW}, {"role": "assistant", "content": "Too long."}]
    (only,) = play(Conversation("a", huge), "recent").requests
    assert only.overflows
    assert (only.refused, only.forwarded_tokens) == (True, 0)
    messages = [{"role": "user", "content": "hello?"}]
    conversation = Conversation("a", messages, questions=[question(messages, 0)])
    nothing = dict.fromkeys(("evidence", "names", "said"), (0, 0))
    assert play(conversation, "mask") == ReplayedConversation([], nothing, "a")


def test_off_forwards_what_the_client_sent() -> None:
    played = play(Conversation("a", questions_and_answers(20)), "off")
    assert len(played.requests) == 20
    assert all(each.forwarded_tokens == each.sent_tokens for each in played.requests)
    assert played.requests[-1].overflows
    assert not played.requests[0].overflows


@pytest.mark.parametrize("strategy", ["recent", "half-window", "extract", "mask+half-window"])
def test_a_strategy_keeps_every_request_in_its_window(strategy: str) -> None:
    played = play(Conversation("a", questions_and_answers(20)), strategy)
    assert any(each.condensed for each in played.requests)
    assert not any(each.overflows or each.action is Action.DEGRADED for each in played.requests)
    assert played.requests[-1].forwarded_tokens < played.requests[-1].sent_tokens
    for before, after in zip(played.requests, played.requests[1:], strict=False):
        assert after.shared_tokens == before.message_tokens or after.condensed


def test_tools_are_counted_in_what_is_sent() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {}}}
    bare, offering = (play(Conversation("a", questions_and_answers(2), tools), "off") for tools in ([], [tool]))
    assert offering.requests[0].forwarded_tokens > bare.requests[0].forwarded_tokens


def test_only_what_a_request_held_is_looked_for_in_the_last_view() -> None:
    messages = questions_and_answers(20)
    messages[3]["content"] = "My order is ORD-4711."
    kept = [play(Conversation("a", messages), name) for name in ("off", "recent")]
    assert [played.kept["names"] for played in kept] == [(1, 1), (0, 1)]
    messages = questions_and_answers(20)
    messages[3]["content"] = SECRET
    conversation = Conversation("a", messages, questions=[question(messages, 3), question(messages, len(messages) - 2)])
    assert [play(conversation, name).kept["evidence"] for name in ("off", "recent")] == [(2, 2), (1, 2)]
    messages = questions_and_answers(3)
    questions = [question(messages, 1), question(messages, len(messages) - 1)]
    played = play(Conversation("a", messages, questions=questions), "off")
    assert played.kept["evidence"] == (1, 1)


def test_a_run_costs_its_reads_and_its_own_calls() -> None:
    requests = [
        ReplayedRequest(1_000, 900, 0, 100, 4_000, 1.0),
        ReplayedRequest(2_000, 1_900, 900, 100, 4_000, 1.0, own_tokens=500, own_replies=100),
    ]
    prices = Prices(input=1.0, cached_input=0.1, cache_write=1.0, output=5.0)
    assert ReplayedConversation(requests).cost(prices) == pytest.approx((1_000 + 1_000 + 100 + 400 + 500) / 1e6)


async def test_a_question_is_asked_behind_the_whole_history_and_changes_nothing() -> None:
    messages = questions_and_answers(20)
    messages[3]["content"] = SECRET
    early, late = question(messages, 3), question(messages, len(messages) - 2)
    async with open_replay_proxy(load_settings(store={"url": "memory://"})) as built:
        conversation = Conversation("a", messages, questions=[early, late])
        playing = Playing(Player(built, "", WINDOW), conversation, "recent", "0")
        before = await playing.play()
        requests, view = list(playing.requests), list(playing.view)
        asked = [await playing.ask(each) for each in (early, late)]
    assert [reached for _, reached in asked] == [False, True]
    assert all(request.sent_tokens > before.requests[-1].sent_tokens for request, _ in asked)
    assert (list(playing.requests), list(playing.view)) == (requests, view)


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
    client, cache = RecordedClient(conversation, "m"), MessageCache()

    async def sent() -> list[Body]:
        return [(await client.request(cache, end)).body for end in request_ends(conversation)]

    bodies = asyncio.run(sent())
    return [{**body.values, body.endpoint.list_member: [each.value for each in body.elements]} for body in bodies]


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_each_protocol_has_the_same_requests_and_questions(protocol: str) -> None:
    chat, conversation = load(), load(protocol)
    assert len(list(request_ends(conversation))) == len(list(request_ends(chat)))
    text = conversation.endpoint.dialect.text
    for asked, original in zip(conversation.questions, chat.questions, strict=True):
        assert asked.evidence == original.evidence
        assert asked.reaches("\n".join(text(conversation.messages[place]) for place in asked.places))


def test_strict_servers_refuse_no_request_of_a_replay() -> None:
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
