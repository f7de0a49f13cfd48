"""`semantic` against its document: the score of every kind of event, and which events are forgotten."""

from __future__ import annotations

import random
import re
from math import ceil
from typing import Any, NamedTuple

import pytest

from strategies.core.budget import Budget
from strategies.core.messages import ToolCall
from strategies.selection import MessageImportanceScorer, Wording
from strategies.semantic import Semantic
from tests.strategies.differential import SEEDS, examples, ports
from tests.strategies.driving import condensed, stages_of
from tests.support.transcripts import Body, assistant, call, message, step, tool, user, view_of, words

pytestmark = pytest.mark.hypothesis

LONGEST = 400  # of an event; bodies over an eighth of it are long
EDITOR, SHELL = "write_file", "bash"
SCORER = MessageImportanceScorer(
    Wording(ports.ERRORS, ports.INSTRUCTIONS, ports.SUCCESSES, ports.OPERATIONS, (EDITOR,)), LONGEST
)
WORDS = [
    *ports.ERRORS, *ports.INSTRUCTIONS, *ports.SUCCESSES, *ports.OPERATIONS,
    *("TypeError", "FAILED", "Successfully", "unfinished", "committed", "digital", "git_dir", "pushes", "re-deploy"),
    *("the", "sky", "is", "blue", "云", "很", "Please", "CAN YOU", "GIT", "用git提交"),
]  # fmt: skip


def text(rng: random.Random) -> str:
    """A few lines of words that count and words that do not, in any case, some of them lines of a log."""
    lines = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        said = " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 2, 3, 9])))
        written = rng.choice([said, said.upper(), said.title()])
        lines.append(rng.choice(["", "", "", "DEBUG: ", "TRACE "]) + written)
    return "\n".join(lines)


def event(rng: random.Random) -> tuple[str, Body, str, str]:
    """The kind of an event, its message, what it says, and the kind of the call whose result it is."""
    said, kind = text(rng), rng.choice(["user", "edit", "call", "text", "result", "outcome"])
    if kind == "user":
        return kind, user(said), said, ""
    if kind == "text":
        return kind, assistant(said), said, ""
    if kind in ("edit", "call"):
        name = EDITOR if kind == "edit" else SHELL
        body: Body = assistant(None, call("c", name, said))
        (made,) = message(body).calls
        return kind, body, f"{name} {made.arguments}", ""
    answers = rng.choice(["", "edit", "call"]) if kind == "outcome" else ""
    return "result", tool("c", said), said, answers


@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_has_the_documents_score(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(150):
        kind, body, said, answers = event(rng)
        age = rng.choice(
            [None, 0.0, ports.HOUR, ports.HOUR + 1, ports.DAY, ports.DAY + 1, rng.uniform(0, 2 * ports.DAY)]
        )
        asked = ToolCall("c", EDITOR if answers == "edit" else SHELL, "{}") if answers else None
        expected = ports.importance(kind, said, LONGEST, answers, age)
        assert SCORER.score(message(body), asked, age) == pytest.approx(expected, abs=1e-4), (kind, said, answers, age)


# -- what is forgotten ---------------------------------------------------------------------------------------------

MOST, RATIO = 24, 0.5


class Event(NamedTuple):
    """A message or a round of the conversation, which is kept or forgotten whole."""

    kind: str
    bodies: list[Body]
    score: float


def session(rng: random.Random) -> list[Event]:
    """Events that each say their number. The first is the task; the last is a round."""
    events = [Event("user", [user("event-0- mend the parser")], 0.4)]
    for number in range(1, rng.randint(MOST // 2, 2 * MOST)):
        said, name = f"event-{number}- {text(rng)} {words(20)}", rng.choice([EDITOR, SHELL])
        call_kind = "edit" if name == EDITOR else "call"
        if rng.random() < 0.3 and events[-1].kind != "user":
            events.append(Event("user", [user(said)], ports.importance("user", said, 8_000)))
        elif rng.random() < 0.4:
            events.append(Event("text", [assistant(said)], ports.importance("text", said, 8_000)))
        else:
            asked, result = step(number, 1, name)
            score = ports.importance(call_kind, f"{name} {message(asked).calls[0].arguments}", 8_000)
            score = max(score, ports.importance("result", said, 8_000, call_kind))
            events.append(Event(call_kind, [asked, {**result, "content": said}], score))
    return events if events[-1].kind != "user" else events[:-1]


def units_of(events: list[Event]) -> list[list[int]]:
    """The events that are forgotten together: a message of the user with the last round of its turn, or one round."""
    users = [at for at, each in enumerate(events) if each.kind == "user" and at]
    lasts = {at: min((other for other in users if other > at), default=len(events)) - 1 for at in users}
    joined = set(lasts.values())
    alone = [[at] for at in range(len(events)) if at not in lasts and at not in joined]
    return [*alone, *([at, last] for at, last in lasts.items())]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_forgotten_event_is_worth_more_than_one_that_stays(seed: int) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {"max_size": MOST, "max_compression_ratio": RATIO, "editing_tools": EDITOR}
    (strategy,) = stages_of("semantic", semantic=options)
    assert isinstance(strategy, Semantic)
    budget, chosen = Budget.of(1_000_000).with_goal(900_000), 0
    for _ in examples(25):
        events = session(rng)
        bodies = [body for event in events for body in event.bodies]
        view = view_of(bodies)
        assert strategy.is_due(view, budget) == (len(bodies) > MOST)
        if len(bodies) <= MOST:
            continue
        after = condensed("semantic", view, budget, **options)
        # What the record quotes of an event does not make it stay.
        left = "\n".join(item.message.raw for item in after.items if not item.is_replacement)
        shown = {int(number) for number in re.findall(r"event-(\d+)-", left)}
        target = max(int(MOST * RATIO), 1 + 2)
        assert {0, len(events) - 1} <= shown
        # The newest half of what may be left is the tail; rounds are whole, so it may be a message more.
        tail = len(bodies) - ceil((target - 2) / 2)
        places = [at for at, event in enumerate(events) for _ in event.bodies]
        middle = [unit for unit in units_of(events) if 0 not in unit and unit[-1] < places[tail]]
        kept = [max(events[at].score for at in unit) for unit in middle if set(unit) <= shown]
        forgotten = [max(events[at].score for at in unit) for unit in middle if not shown & set(unit)]
        assert len(kept) + len(forgotten) == len(middle)
        assert not kept or not forgotten or max(forgotten) <= min(kept) + 1e-4, [event.score for event in events]
        assert len(after.items) <= target + 4  # task, record and the newest round may exceed it
        chosen += bool(kept)
    assert chosen
