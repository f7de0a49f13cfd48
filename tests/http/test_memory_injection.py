"""Injection: what was condensed away and is relevant comes back, once for each user message, and stays for its turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import Message, Stage, controls, proxy_with_upstream, summary

INJECT = ("X-Condenser-Memory", "inject")
FORCE = ("X-Condenser-Force", "true")
FACT = "The greenhouse key hangs behind the blue barrel."
QUESTION = "Where does the greenhouse key hang?"


def diary(rounds: int) -> list[Message]:
    """A long talk in whose first answer a fact was stated."""
    messages: list[Message] = [{"role": "user", "content": "Keep a diary of my garden."}]
    for day in range(rounds):
        said = FACT if day == 1 else f"Day {day}: " + " ".join(f"plant{day}n{each}" for each in range(60))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": f"Write down day {day + 1}."})
    return messages


def ending(messages: Sequence[Message], question: str) -> list[Message]:
    return [*messages[:-1], {"role": "user", "content": question}]


def blocks(stage: Stage) -> list[dict[str, Any]]:
    return [each for each in stage.last_view if each.get("name") == "memory_context"]


@contextmanager
def gardening(**settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(
        strategy="half-window",
        answers=lambda _: summary("Goal: a diary of all that was done, day by day, with the names."),
        **settings,
    ) as stage:
        yield stage


def condensed(stage: Stage, rounds: int = 12) -> list[Message]:
    """A session whose beginning was condensed away, and its transcript."""
    messages = diary(rounds)
    stage.ask(messages, [*controls(session="s"), FORCE])
    assert FACT not in str(stage.last_view)
    return messages


def test_what_was_condensed_away_stands_before_the_message_about_it_for_that_turn_only() -> None:
    with gardening() as stage:
        messages = ending(condensed(stage), QUESTION)
        stage.ask(messages, [*controls(session="s"), INJECT])
        (block,) = blocks(stage)
        assert FACT in block["content"]
        assert block["content"].startswith("## Relevant Memories")
        first = stage.last_view
        assert first[-2:] == [block, messages[-1]]
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "a key and the greenhouse"},
        ]
        stage.ask(messages, controls(session="s"))
        assert stage.last_view[: len(first)] == first
        messages += [{"role": "assistant", "content": "Found."}, {"role": "user", "content": "Thanks, bye."}]
        stage.ask(messages, controls(session="s"))
        assert block not in stage.last_view


def test_it_is_off_unless_somebody_asks_for_it_and_then_sticks() -> None:
    with gardening() as stage:
        stage.ask(ending(diary(4), QUESTION), [*controls(session="t"), INJECT])
        assert stage.forwarded[-1].body == stage.sent[-1]  # the view shows everything
        messages = condensed(stage)
        for headers in ([], [INJECT]):
            stage.ask(ending(messages, QUESTION), [*controls(session="s"), *headers])
            assert bool(blocks(stage)) is bool(headers)
        answered = [*ending(messages, QUESTION), {"role": "assistant", "content": "Behind."}]
        stage.ask([*answered, *diary(0)], controls(session="s"))
        stage.ask(ending(messages, QUESTION + " Again?"), controls(session="s"))
        assert blocks(stage)


def test_what_was_edited_away_is_never_found() -> None:
    with gardening() as stage:
        messages, question = condensed(stage), f"{QUESTION} And what of day 2?"
        stage.ask(ending(messages, question), [*controls(session="s"), INJECT])
        (block,) = blocks(stage)
        assert FACT in block["content"]
        edited = [{**each, "content": "I forgot."} if each["content"] == FACT else each for each in messages]
        stage.ask(edited, [*controls(session="s"), FORCE])
        stage.ask(ending(edited, question), [*controls(session="s"), INJECT])
        (block,) = blocks(stage)
        assert "Write down day 2." in block["content"]
        assert FACT not in json.dumps(stage.last_view)


CARDS = [
    {"content": "The user waters at dawn only.", "type": "constraint", "tags": ["water"]},
    {"content": "The fig tree is called Ada.", "type": "fact", "tags": []},
]
OTHER_CARDS = [{"content": "The pond beside the fig tree is called Bodo.", "type": "fact", "tags": []}]
OTHER_TASK: Message = {"role": "user", "content": "Keep another diary."}


def with_cards(exchange: Exchange) -> Reply:
    """A summary with the cards of the line that it is of."""
    cards = OTHER_CARDS if str(OTHER_TASK["content"]) in exchange.body.decode() else CARDS
    return summary(
        json.dumps({"summary": "The user keeps a garden diary, in which every plant has a line.", "memories": cards})
    )


def test_cards_of_a_summary_are_kept_with_it() -> None:
    with proxy_with_upstream(strategy="rolling", answers=with_cards) as stage:
        for line, name, foreign in ((diary(12), "Ada", "Bodo"), ([OTHER_TASK, *diary(12)[1:]], "Bodo", "Ada")):
            stage.ask(line, [*controls(session="s"), FORCE])
            stage.ask(ending(line, "What is the fig tree called?"), controls(session="s"))
            (block,) = blocks(stage)
            assert name in block["content"]
            assert foreign not in json.dumps(stage.last_view)


def test_a_dry_run_shows_the_block_that_the_request_gets() -> None:
    with gardening() as stage:
        messages = ending(condensed(stage), QUESTION)
        planned = stage.ask(messages, [*controls(session="s", dry_run="true"), INJECT]).json()["messages"]
        stage.ask(messages, [*controls(session="s"), INJECT])
        assert FACT in blocks(stage)[0]["content"]
        assert planned == stage.last_view
