"""The summarizer without a model."""

import json
from collections.abc import Sequence

import pytest

from proxy.commands.replaying.models import scripted_answer, scripted_lines, scripted_votes, stage_is_done
from proxy.protocols.chat import ChatCounter
from proxy.tokens.counter import Counter, Tokenizers
from strategies.core.effects import Ask, Ballot
from strategies.core.summary import CARD_TOKENS
from strategies.prompts import prompt

HISTORY = """\
<history>
<message index="0" role="user">
The port is 48613.
Never touch it.
</message>
<message index="1" role="assistant">
I will look.
calls read({"path": "a.py"})
</message>
<message index="2" role="tool">
calls nothing
</message>
<message index="3" role="assistant">
calls bash({"command": "ls"})
</message>
</history>"""
EARLIER = "<earlier_record>\nThe user said: The ticket is TUI-4417.\nThe assistant calls old()\n</earlier_record>\n\n"


@pytest.fixture(scope="module")
def counter() -> Counter:
    return Tokenizers().for_model("any", ChatCounter)


def test_an_earlier_record_is_carried_forward_with_the_users_words_first() -> None:
    assert scripted_lines(EARLIER + HISTORY) == [
        "The user said: The ticket is TUI-4417.",
        "The user said: The port is 48613. Never touch it.",
        "The assistant calls old()",
        'The assistant calls read({"path": "a.py"})',
        'The assistant calls bash({"command": "ls"})',
    ]


def test_where_room_is_short_the_oldest_calls_go_first(counter: Counter) -> None:
    text = scripted_answer(Ask("", EARLIER + HISTORY, 62), counter).text
    assert "TUI-4417" in text
    assert "48613" in text
    assert "bash" in text
    assert "old()" not in text


@pytest.mark.parametrize("room", [1, 5, 20, 40, 80, 400])
def test_it_keeps_within_what_was_asked_for_and_is_never_empty(counter: Counter, room: int) -> None:
    answer = scripted_answer(Ask("system", EARLIER + HISTORY, room), counter)
    assert answer.text
    assert counter.text(answer.text) <= max(room, 12)


def test_its_record_is_in_a_tag_where_wanted_and_counted(counter: Counter) -> None:
    assert scripted_answer(Ask("", "<history>\n\n</history>", 100), counter).text == "Nothing was said or done."
    asked = Ask(prompt("dynacontext"), HISTORY, 200)
    text = scripted_answer(asked, counter).text
    assert text.startswith("<summary>The user said: ")
    assert text.endswith("</summary>")
    answer = scripted_answer(Ask("system", HISTORY, 400), counter)
    assert answer.tokens == counter.text("system") + counter.text(HISTORY) + counter.text(answer.text)


def test_where_memory_cards_are_wanted_their_room_is_not_the_records(counter: Counter) -> None:
    room = 2 * CARD_TOKENS
    long = EARLIER + HISTORY * 200
    assert counter.text(scripted_answer(Ask("system", long, room), counter).text) > room - CARD_TOKENS
    assert counter.text(scripted_answer(Ask(prompt("memory"), long, room), counter).text) <= room - CARD_TOKENS


def judge_prompt(*messages: tuple[str, str]) -> str:
    body = "\n".join(
        f'<message index="{i}" role="{role}">\n{text}\n</message>' for i, (role, text) in enumerate(messages)
    )
    return f"<history>\n{body}\n</history>\n\nVote now."


ASKED, LOOKED, ANSWERED = (
    ("user", "Mend the login form."),
    ("assistant", "calls read(a)"),
    ("assistant", "It is mended."),
)


@pytest.mark.parametrize(
    ("history", "yes", "why"),
    [
        (
            (ASKED, LOOKED, ("tool", "[a result of 9 tokens]"), ANSWERED, ("user", "Write the changelog.")),
            True,
            "complete",
        ),
        ((ASKED, ANSWERED, ("user", "Is the login form mended on phones?")), False, "goes on"),
        ((ASKED, ANSWERED, ("user", "yes")), False, "goes on"),
        ((ASKED, LOOKED, ("tool", "[a result of 9 tokens]")), False, "middle"),
        ((ASKED, LOOKED, ("tool", "x"), LOOKED, ("tool", "x"), LOOKED, ("tool", "x")), True, "repeats"),
        ((ASKED,), False, "middle"),
        ((), False, "middle"),
    ],
)
def test_a_judge_votes_by_whether_a_stage_is_done(history: Sequence[tuple[str, str]], yes: bool, why: str) -> None:
    decided, reasoning = stage_is_done(judge_prompt(*history))
    assert decided is yes
    assert why in reasoning


@pytest.mark.parametrize(("history", "votes"), [((ASKED, ANSWERED, ("user", "Write docs.")), 2), ((ASKED,), 3)])
def test_enough_judges_vote_to_decide(history: Sequence[tuple[str, str]], votes: int, counter: Counter) -> None:
    ballot = Ballot("Judge.", judge_prompt(*history), k=4, max_attempts=12, max_tokens=100)
    cast = scripted_votes(ballot, counter)
    assert (len(cast.votes), cast.calls) == (votes, votes)
    assert cast.tokens > votes * counter.text(ballot.user)


def test_a_view_that_is_continued_is_read_and_counted_with_its_record(counter: Counter) -> None:
    record = "## Context Summary\nIt stands for 4 messages.\n\nKey Facts: The user said: The ticket is TUI-4417."
    bodies = [{"role": "assistant", "content": record}, {"role": "user", "content": "The port is 48613."}]
    view = json.dumps(bodies)
    asked = prompt("summary-continue")
    answer = scripted_answer(Ask("", asked, 400, view=view, record=300), counter)
    assert "The port is 48613." in answer.text
    assert "TUI-4417" in answer.text
    assert answer.tokens == counter.text(asked) + counter.text(view) + counter.text(answer.text)
