"""`rolling` against its document: when it condenses, what it keeps, and how a summary rolls on."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from strategies.core.budget import MIN_TRIGGER, Budget
from strategies.core.effects import Answer, Ask, Effect
from strategies.pipeline import with_stage_marks
from tests.strategies.differential import SEEDS, examples, ports
from tests.strategies.driving import condensed, later, stages_of
from tests.support.transcripts import Body, assistant, bodies_of, step, transcript_of, user, view_of, words

pytestmark = pytest.mark.hypothesis


@pytest.mark.parametrize("seed", SEEDS)
def test_it_condenses_at_the_documents_two_triggers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(60):
        window, threshold = rng.choice([8, 16, 32, 128, 200, 1_000]) * 1_000, rng.uniform(0.5, 1.0)
        plain = Budget.of(window)
        budget = with_stage_marks(plain, stages_of("rolling", rolling={"compression_threshold": threshold}))
        for used in (budget.trigger - 2, budget.trigger + 2):
            assert (used >= budget.trigger) == ports.needs_compression(used, window, plain.usable, threshold), (
                *(window, threshold, used),
            )
        assert budget.trigger >= MIN_TRIGGER * plain.usable


SECTIONS = ("Goal", "Background", "Key Facts", "Constraints", "Decisions", "TODOs / Next Steps", "Important Snippets")


def conversation(rng: random.Random, turns: int) -> list[Body]:
    bodies: list[Body] = [user("message-0- a garden")]
    while len(bodies) < turns:
        number = len(bodies)
        if rng.random() < 0.4:
            asked, result = step(number, 1)
            bodies += [asked, {**result, "content": f"message-{number}- {words(rng.randint(200, 400))}"}]
        else:
            bodies.append(assistant(f"message-{number}- {words(rng.randint(200, 400))}"))
            bodies.append(user(f"message-{number + 1}- {words(rng.randint(5, 60))}"))
    return bodies


@pytest.mark.parametrize("seed", SEEDS)
def test_one_summary_rolls_on_before_the_newest_messages(seed: int) -> None:
    rng = random.Random(seed)
    for _ in examples(12):
        keep, ratio = rng.randint(1, 9), rng.uniform(0.3, 0.6)
        options: dict[str, Any] = {"min_messages_to_keep": keep, "retained_ratio": ratio}
        budget = with_stage_marks(Budget.of(8_000), stages_of("rolling", rolling=options))
        bodies = conversation(rng, 100)
        view = view_of(bodies[:50])
        summaries: list[str] = []

        def reply(effect: Effect, summaries: list[str] = summaries) -> Answer:
            assert isinstance(effect, Ask)
            # Sections by the prompt, and the summary so far as material for the next one.
            assert all(section in effect.system for section in SECTIONS)
            assert not summaries or f"<earlier_record>\n{summaries[-1]}" in effect.user
            summaries.append(f"Goal: a garden, the {len(summaries) + 1}. time. Key Facts: {words(60)}")
            return Answer(json.dumps({"summary": summaries[-1], "memories": []}))

        for count in (50, len(bodies)):
            view = view if count == 50 else later(view, transcript_of(bodies))
            size = view.tokens
            assert size > budget.trigger
            view = condensed("rolling", view, budget, reply, **options)
            sent = bodies_of(view)
            (summary,) = [body for body in sent if body.get("name") == "context_summary"]
            assert summary["role"] == "assistant"
            assert summary["content"].startswith("## Context Summary\n")
            assert summaries[-1] in summary["content"]
            assert not any(earlier in str(sent) for earlier in summaries[:-1])
            newest = sent[sent.index(summary) + 1 :]
            assert newest == bodies[count - len(newest) : count]
            assert len(newest) >= min(keep, count - 1)
            assert sent[0] == bodies[0]
            # As many of the newest as fit the target, and at least so many messages as must stay.
            assert view.tokens < size
            assert view.tokens <= budget.target or len(newest) <= keep + 2
