"""Plans without a driver: a strategy on a transcript, with one text as the answer to all its questions."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strategies.core.budget import Budget
from strategies.core.effects import Answer, Compact
from strategies.core.messages import Message, Reader, TokenCounter
from strategies.core.protocol import SessionFacts, Strategy
from strategies.core.transcript import Transcript
from strategies.core.view import View
from strategies.pipeline import Outcome, Run, run
from tests.strategies.driving import compacted, finish


def counted(messages: Iterable[Mapping[str, Any]], counter: TokenCounter) -> Transcript:
    """The transcript of chat messages, each counted."""
    reader = Reader()

    def read(body: Mapping[str, Any]) -> Message:
        return reader.read(json.dumps(body), body, counter.message(body), counter.dialect)

    return Transcript.of(map(read, messages))


def planned(pipeline: Sequence[Strategy], view: View, budget: Budget, answer: str) -> Outcome:
    """The outcome of a pipeline whose questions are answered at once."""
    running: Run = run(pipeline, (), view, budget, SessionFacts())
    return finish(running, lambda effect: compacted(answer) if isinstance(effect, Compact) else Answer(answer))
