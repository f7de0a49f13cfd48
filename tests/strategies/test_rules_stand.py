"""What the user ruled in the first turns stands in every view, in windows of any size, whatever a summarizer forgets.

The same over HTTP is in tests/http/test_rules_survive.py; here no server is needed, and so more windows are cheap.
"""

import pytest

from strategies.core.budget import Budget
from strategies.core.requirement import Requirement
from tests.strategies.driving import attempted, forgetful, judged_session, later
from tests.strategies.invariants import faults
from tests.support.transcripts import RULES, Body, assistant, transcript_of, user, view_of, words

TURNS, CONDENSATIONS = 300, 10


def wordy_deployments(size: int) -> list[Body]:
    """A chat with a rule in each of the first turns; every later message carries newer identifiers."""
    bodies: list[Body] = []
    for turn in range(TURNS):
        rule = RULES[turn] if turn < len(RULES) else f"The ticket is OPS-{turn} on node-{turn}."
        bodies.append(user(f"How is deployment {turn}? {rule}"))
        bodies.append(assistant(f"Deployment {turn} is under way: job_{turn} took {turn * 7} ms. {words(size)}"))
    return [*bodies, user("And now?")]


@pytest.mark.parametrize("window", [3_072, pytest.param(8_192, marks=pytest.mark.torture)])
@pytest.mark.parametrize("strategy", ["summary", "half-window", "semantic", "rolling", "dynacontext"])
def test_rules_stand_word_for_word_after_ten_condensations(strategy: str, window: int) -> None:
    budget = Budget.of(window)
    # In a tenth of the turns as much comes as two fifths of the window.
    bodies = wordy_deployments(window * 2 // 5 * CONDENSATIONS // TURNS)
    view = view_of(bodies[: 2 * TURNS // CONDENSATIONS + 1])
    for done in range(1, CONDENSATIONS + 1):
        if done > 1:
            view = later(view, transcript_of(bodies[: done * 2 * TURNS // CONDENSATIONS + 1]))
        before = view.tokens
        view = attempted(Requirement.FORCED, strategy, view, budget, forgetful, judged_session(view)).view
        assert faults(view, budget) == []
        assert view.tokens < before
        text = view.to_json()
        assert [rule for rule in RULES if rule not in text] == []
