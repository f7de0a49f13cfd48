"""Conversations through the real driver, its store in memory and its tokenizer real; only the model is a script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.reasons import Action
from proxy.replaying.measures import ReplayedConversation, ReplayedRequest
from proxy.replaying.play import Player, Playing, open_replay_proxy, request_ends
from proxy.replaying.recorded import Conversation, Question
from proxy.settings import load_settings
from strategies.core.economics import Prices

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


def test_there_is_a_request_for_each_reply_that_something_came_before() -> None:
    opening = [{"role": "assistant", "content": "Hello, how can I help?"}, *questions_and_answers(2)]

    assert list(request_ends(Conversation("a", opening))) == [3, 5]


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


def test_a_summary_costs_tokens_of_our_own_and_dropping_costs_none() -> None:
    assert (
        sum(
            each.own_tokens
            for each in play(Conversation("a", questions_and_answers(40)), "half-window", 2 * WINDOW).requests
        )
        > 0
    )
    assert sum(each.own_tokens for each in play(Conversation("a", questions_and_answers(20)), "recent").requests) == 0


def test_observing_changes_nothing_and_counts_what_would_have_been_done() -> None:
    played = play(Conversation("a", questions_and_answers(20)), "observe:recent")

    assert all(each.forwarded_tokens == each.sent_tokens for each in played.requests)
    assert any(each.condensed for each in played.requests)


def test_tools_are_counted_in_what_is_sent() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up.", "parameters": {}}}
    bare, offering = (play(Conversation("a", questions_and_answers(2), tools), "off") for tools in ([], [tool]))

    assert offering.requests[0].forwarded_tokens > bare.requests[0].forwarded_tokens


def test_a_request_that_cannot_fit_is_an_overflow() -> None:
    huge = [{"role": "user", "content": "word " * 3 * WINDOW}, {"role": "assistant", "content": "Too long."}]

    (only,) = play(Conversation("a", huge), "recent").requests

    assert only.overflows
    assert (only.refused, only.forwarded_tokens) == (True, 0)


def test_names_that_the_user_gave_are_looked_for_in_the_last_view() -> None:
    messages = questions_and_answers(20)
    messages[3]["content"] = "My order is ORD-4711."

    kept = [play(Conversation("a", messages), name) for name in ("off", "recent")]

    assert [played.kept["names"] for played in kept] == [(1, 1), (0, 1)]


def test_a_run_costs_its_reads_and_its_own_calls() -> None:
    requests = [
        ReplayedRequest(1_000, 900, 0, 100, 4_000, 1.0),
        ReplayedRequest(2_000, 1_900, 900, 100, 4_000, 1.0, own_tokens=500, own_replies=100),
    ]
    prices = Prices(input=1.0, cached_input=0.1, cache_write=1.0, output=5.0)

    assert ReplayedConversation(requests).cost(prices) == pytest.approx((1_000 + 1_000 + 100 + 400 + 500) / 1e6)


def test_evidence_that_was_dropped_is_not_kept_and_off_keeps_all() -> None:
    messages = questions_and_answers(20)
    messages[3]["content"] = SECRET
    conversation = Conversation("a", messages, questions=[question(messages, 3), question(messages, len(messages) - 2)])

    assert [play(conversation, name).kept["evidence"] for name in ("off", "recent")] == [(2, 2), (1, 2)]


def test_evidence_that_no_request_held_is_not_asked_for() -> None:
    messages = questions_and_answers(3)

    questions = [question(messages, 1), question(messages, len(messages) - 1)]
    played = play(Conversation("a", messages, questions=questions), "off")

    assert played.kept["evidence"] == (1, 1)


def test_each_view_between_two_condensations_begins_with_the_one_before() -> None:
    played = play(Conversation("a", questions_and_answers(30)), "recent")

    for before, after in zip(played.requests, played.requests[1:], strict=False):
        assert after.shared_tokens == before.message_tokens or after.condensed


def test_a_conversation_without_a_reply_has_no_request() -> None:
    messages = [{"role": "user", "content": "hello?"}]
    conversation = Conversation("a", messages, questions=[question(messages, 0)])

    nothing = dict.fromkeys(("evidence", "names", "rules"), (0, 0))
    assert play(conversation, "mask") == ReplayedConversation([], nothing, "a")


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
