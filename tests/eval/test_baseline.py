"""CliffCompaction's rule: what it keeps of a conversation, and when."""

import asyncio
from collections.abc import Sequence
from typing import Any

from eval import baseline
from proxy.commands.replaying.measures import ReplayedConversation
from proxy.commands.replaying.play import Player, open_replay_proxy
from proxy.commands.replaying.recorded import Conversation
from proxy.settings import load_settings
from tests.support.transcripts import assistant, call, tool, user

WINDOW = 2_000


def played(messages: Sequence[Any], window: int = WINDOW) -> ReplayedConversation:
    async def play() -> ReplayedConversation:
        async with open_replay_proxy(load_settings(store={"url": "memory://"})) as built:
            return baseline.play_by_rule(Player(built, "", window), Conversation("a", list(messages)))

    return asyncio.run(play())


def agent_rounds(rounds: int) -> list[dict[str, Any]]:
    """An agent's rounds, whose results are too long for the rule to keep."""
    work: list[dict[str, Any]] = [user("Do all steps.")]
    for i in range(rounds):
        work += [assistant(None, call(f"c{i}", "run", {"step": i})), tool(f"c{i}", f"out{i} " + "word " * 150)]
    return [*work, assistant("Done.")]


def test_below_the_trigger_the_clients_messages_go_on() -> None:
    requests = played(agent_rounds(5), window=100_000).requests
    assert not any(request.condensed for request in requests)
    assert all(request.forwarded_tokens == request.sent_tokens for request in requests)


def test_above_it_the_prompt_falls_and_then_grows_again() -> None:
    requests = played(agent_rounds(60)).requests
    condensed = [place for place, request in enumerate(requests) if request.condensed]
    assert len(condensed) > 1
    for place in condensed:
        assert requests[place].forwarded_tokens < requests[place - 1].forwarded_tokens
    assert not any(request.refused for request in requests)


def test_a_name_survives_two_cycles_and_no_more() -> None:
    kept = [played([*agent_rounds(1), user("It is ORD-4711."), *agent_rounds(rounds)]) for rounds in (12, 60)]
    assert [each.kept["names"] for each in kept] == [(1, 1), (0, 1)]


def test_calls_and_results_are_cut_as_the_rule_says() -> None:
    work = [
        message
        for i, size in enumerate((400, 2_000, 10, 10, 10, 10))
        for message in (assistant(None, call(f"c{i}", "run", {"x": "y" * 400})), tool(f"c{i}", f"out{i} " + "z" * size))
    ]
    lines = [line for message in work[:4] for line in baseline.lines_of(Conversation("a", work), message)]
    assert [line[:12] for line in lines] == ["called run {", "result: out0", "called run {"]
    assert len(lines[0]) == len("called run ") + 150
