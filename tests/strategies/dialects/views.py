"""Views of conversations of another protocol than chat, and what must hold of them before the upstream is asked."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.messages import Dialect, TokenCounter
from strategies.core.plan import head_pieces, newest_is_shortened
from strategies.core.requirement import Requirement
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.pipeline import Outcome
from tests.strategies.driving import Reply, attempted
from tests.strategies.invariants import faults_beside_pairs
from tests.support.transcripts import READER

Body = dict[str, Any]
Request = tuple[Requirement, int, int]
"""What is required, the window, and the tokens beside the list."""


def view_in(dialect: Dialect, counter: TokenCounter, bodies: Sequence[Body], fixed: int) -> View:
    """The view of a list to which nothing was done yet."""
    read = [READER.read(json.dumps(each, ensure_ascii=False), each, counter.message(each), dialect) for each in bodies]
    return fold(Transcript.of(read), (), fixed, counter)


def list_sent(pipeline: str, view: View, request: Request, reply: Reply) -> list[Body] | None:
    """What is sent after a pipeline, which is sound and the same every time; None where nothing was done."""
    requirement, window, _ = request
    budget = Budget.of(window)
    outcome: Outcome | None = None
    with suppress(StrategyError):
        outcome = attempted(requirement, pipeline, view, budget, reply)
    if outcome is None:
        return None
    again = attempted(requirement, pipeline, view, budget, reply)
    assert head_pieces(again.view) == head_pieces(outcome.view)
    assert outcome.view.tokens < view.tokens
    assert faults_beside_pairs(outcome.view, budget, shortened=newest_is_shortened(outcome.view)) == []
    sent: list[Body] = json.loads(outcome.view.to_json())
    return sent
