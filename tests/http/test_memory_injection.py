"""Injection: what was condensed away and is asked about comes back once, and stays until it is condensed again."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.recording import Exchange
from tests.support.replies import Reply
from tests.support.stage import MORE, Message, Stage, controls, proxy_with_upstream, summary

INJECT = ("X-Condenser-Memory", "inject")
FORCE = ("X-Condenser-Force", "true")
FACT = "The greenhouse key hangs behind the blue barrel."
QUESTION = "Where does the greenhouse key hang?"
OTHER_FACT = "The code of the tool shed is 4711."
OTHER_QUESTION = "What is the code of the tool shed?"
FACTS = {1: FACT, 5: OTHER_FACT}
RULE, RULED = "Never give the quince any fertiliser but bone meal.", 3


def diary(rounds: int) -> list[Message]:
    """A long talk in whose first answers two facts were stated."""
    messages: list[Message] = [{"role": "user", "content": "Keep a diary of my garden."}]
    for day in range(rounds):
        said = FACTS.get(day) or f"Day {day}: " + " ".join(f"plant{day}n{each}" for each in range(60))
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": RULE if day == RULED else f"Write down day {day + 1}."})
    return messages


def ending(messages: Sequence[Message], question: str) -> list[Message]:
    return [*messages[:-1], {"role": "user", "content": question}]


def blocks(stage: Stage) -> list[dict[str, Any]]:
    return [each for each in stage.last_view if each.get("name") == "memory_context"]


@contextmanager
def gardening(**settings: Any) -> Iterator[Stage]:
    with proxy_with_upstream(
        strategy="half-window",
        answers=lambda _: summary(f"Goal: a diary of all that was done, day by day, with the names. {MORE}"),
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
        assert stage.last_view[-2:] == [block, messages[-1]]


def test_what_the_record_tells_competes_with_what_has_left_the_view() -> None:
    record = "Goal: a diary of all that was done, day by day.\nThe code of the boat shed is 3131."
    with proxy_with_upstream(strategy="half-window", answers=lambda _: summary(record)) as stage:
        messages = ending(condensed(stage), "What is the code of the boat shed?")
        stage.ask(messages, [*controls(session="s"), INJECT])
        assert OTHER_FACT not in str(stage.last_view)
        stage.ask(ending(messages, OTHER_QUESTION), [*controls(session="s"), INJECT])
        assert OTHER_FACT in str(stage.last_view)


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WORKED: list[Message] = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a key and the greenhouse"},
    {"role": "assistant", "content": "Found."},
]


def asked_once(stage: Stage) -> tuple[list[Message], Any]:
    """A transcript that ends with a question, and the view that answered it with a block."""
    messages = ending(condensed(stage), QUESTION)
    stage.ask(messages, [*controls(session="s"), INJECT])
    assert len(blocks(stage)) == 1
    return messages, stage.last_view


def test_a_block_stays_at_its_place_until_it_is_condensed() -> None:
    with gardening() as stage:
        messages, view = asked_once(stage)
        more = "Day 13: " + " ".join(f"herb{each}" for each in range(60))
        talk: list[Message] = [{"role": "user", "content": more}, {"role": "assistant", "content": "Ok."}]
        for said in (WORKED[:2], WORKED[2:], *([each] for each in talk)):
            messages += said
            stage.ask(messages, controls(session="s"))
            assert stage.last_view[: len(view)] == view
            view = stage.last_view
        for _ in range(4):
            messages += talk
            stage.ask([*messages, talk[0]], [*controls(session="s"), FORCE])
        assert not blocks(stage)


def test_a_later_block_repeats_nothing_of_an_earlier_one() -> None:
    with gardening() as stage:
        messages, _ = asked_once(stage)
        messages += [*WORKED, {"role": "user", "content": f"{QUESTION} {OTHER_QUESTION}"}]
        stage.ask(messages, controls(session="s"))
        first, second = blocks(stage)
        assert OTHER_FACT in second["content"]
        lines = [line for line in first["content"].splitlines() if line.startswith("> ")]
        assert lines
        assert not any(line in second["content"].splitlines() for line in lines)


def test_what_only_the_record_repeats_stands_before_the_question_about_it() -> None:
    with proxy_with_upstream(strategy="extract") as stage:
        messages = diary(12)
        stage.ask(messages, [*controls(session="s"), FORCE])
        (record,) = (str(each["content"]) for each in stage.last_view if RULE in str(each["content"]))
        assert record.startswith("[Condensed history]")
        stage.ask(ending(messages, "Which fertiliser for the quince?"), [*controls(session="s"), INJECT])
        (block,) = blocks(stage)
        assert RULE in block["content"]


@pytest.mark.parametrize("said", ["Write down day 13.", "Thanks, that is fine.", "Good. " * 40])
def test_a_message_that_names_nothing_hidden_has_no_block(said: str) -> None:
    with gardening() as stage:
        stage.ask(ending(condensed(stage), said), [*controls(session="s"), INJECT])
        assert not blocks(stage)


def test_a_question_about_what_the_view_shows_has_no_block() -> None:
    with gardening() as stage:
        messages = condensed(stage)
        newest = str(messages[-2]["content"])
        stage.ask(ending(messages, f"What is {newest.split()[9]} in {newest[:6]}?"), [*controls(session="s"), INJECT])
        assert not blocks(stage)


def test_an_edited_question_has_a_block_of_its_own() -> None:
    with gardening() as stage:
        messages, _ = asked_once(stage)
        for question, found in ((OTHER_QUESTION, OTHER_FACT), (QUESTION, FACT)):
            stage.ask(ending(messages, question), controls(session="s"))
            (block,) = blocks(stage)
            assert found in block["content"]


def test_a_block_for_its_turn_leaves_with_the_next_message() -> None:
    with proxy_with_upstream(
        strategy="rolling",
        rolling={"block": "turn"},
        answers=lambda _: summary(f"A diary, day by day, of a garden. {MORE}"),
    ) as stage:
        messages, view = asked_once(stage)
        stage.ask([*messages, *WORKED[:2]], controls(session="s"))
        assert stage.last_view[: len(view)] == view
        stage.ask([*messages, *WORKED, {"role": "user", "content": "Thanks."}], controls(session="s"))
        assert not blocks(stage)


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
        json.dumps(
            {
                "summary": "The user keeps a garden diary, in which every plant has a line. "
                + "Each was sown and seen again. " * 7,
                "memories": cards,
            }
        )
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
