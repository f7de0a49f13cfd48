"""Cards of any strategy that summarizes: which messages and condensation they are of, and who may see them."""

import json
from collections.abc import Iterator

import pytest

from tests.http.test_memory_admin import listed, place
from tests.http.test_memory_injection import FACT, FORCE, INJECT, blocks, diary, ending
from tests.support.admin_api import TOKEN, admin
from tests.support.stage import Headers, Message, Stage, controls, proxy_with_upstream, summary

CARD = "The greenhouse key is behind the barrel."
TELLS = f"- fact (assistant):\n> {CARD}"
ASKS = "Where is the greenhouse key?"
RECORD = (
    "Goal: a diary of a garden, with a line for every plant. Done: the lines of the first plants were written in the"
    " order of the beds, each with the day, the weather and what was done for it. Open: the lines of all other plants."
)
ANSWER = f"""<summary>{RECORD}</summary>
<memory>
{json.dumps([{"content": CARD, "type": "fact", "role": "assistant", "tags": ["key"]}])}
</memory>"""
STRATEGIES = ("summary", "half-window", "semantic", "dynacontext")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with proxy_with_upstream(
        answers=lambda _: summary(ANSWER), admin={"token": TOKEN}, summarizer={"window": 16_000}
    ) as built:
        yield built


def condensed(stage: Stage, strategy: str = "half-window") -> list[Message]:
    """A session whose beginning became a record with a card, and its transcript."""
    messages = diary(12)
    stage.ask(messages, [*controls(session="s", strategy=strategy), FORCE])
    assert FACT not in str(stage.last_view)
    return messages


def covered(stage: Stage) -> int:
    """How many messages the session's only card is of, at most."""
    (card,) = listed(stage, place(stage))
    count: int = card["covered"]
    return count


def memory_block(stage: Stage, messages: list[Message], session: str = "s", more: Headers = ()) -> str:
    """The memory block that a question at the end of a transcript has put before it, "" for none."""
    stage.ask(ending(messages, ASKS), [*controls(session=session), *more, INJECT])
    return "".join(each["content"] for each in blocks(stage))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_card_names_its_messages_and_its_condensation(stage: Stage, strategy: str) -> None:
    messages = condensed(stage, strategy)
    (card,) = listed(stage, place(stage))
    session = admin(stage, place(stage).removesuffix("/memory")).json()
    (record,) = session["condensations"]
    (exported,) = session["memory"]
    assert (card["content"], card["condensation"]) == (CARD, record["id"])
    assert [messages[at]["content"] for at in card["places"]] == [FACT]
    assert card["covered"] == record["covered"] > card["places"][0]
    assert (exported["places"], exported["messages"]) == (card["places"], card["messages"])
    assert len(card["messages"]) == 1
    assert RECORD in str(stage.last_view)
    assert "<memory>" not in str(stage.last_view)


def test_a_fork_sees_cards_of_the_messages_it_shares(stage: Stage) -> None:
    messages = condensed(stage)
    count = covered(stage)
    edit = {"role": "user", "content": "I mean the roses."}
    assert TELLS in memory_block(stage, [*messages[: count + 1], edit, *messages[count + 2 :]])
    # The originals before the fork are its own: what was said is found there, and no card that knew what came later.
    block = memory_block(
        stage, [*messages[: count - 1], edit, *messages[count:]], more=[*controls(strategy="recent"), FORCE]
    )
    assert FACT in block
    assert CARD not in block


def test_an_edited_away_message_leaves_no_card_behind(stage: Stage) -> None:
    messages = condensed(stage)
    edited = [{**each, "content": "Nothing hangs anywhere."} if each["content"] == FACT else each for each in messages]
    assert CARD not in memory_block(stage, edited)
    assert CARD not in str(stage.last_view)


def test_another_session_with_another_history_does_not_see_it(stage: Stage) -> None:
    messages = condensed(stage)
    agent = [{"role": "user", "content": "You are a sub-agent. Look for a key."}, *messages[1:3]]
    memory_block(stage, [*agent, messages[-1]], session="agent")
    assert CARD not in str(stage.last_view)
