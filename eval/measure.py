"""Annotated dialogues, and shares of their questions with intervals.

A dialogue is a recorded conversation, counted, with questions and the messages that hold the answer. A question
counts where its whole evidence reaches the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from proxy.commands.replaying import recorded
from proxy.commands.replaying.recorded import Conversation, Question
from strategies.core.ledger import break_labels
from strategies.core.messages import TokenCounter
from strategies.core.transcript import Transcript
from tests.support.planning import counted

MIN_TOKENS = 300
"""Dialogues whose sixteenth has fewer tokens are left out."""
SHARES = (4, 8, 16)
Z = 1.96
Cell = tuple[str, str, int]
"""Where a figure belongs: an arm, a language, and one part in how many the view has of the dialogue."""
C = TypeVar("C")


@dataclass(frozen=True)
class Dialogue:
    """One conversation; the places of its questions are those of the transcript's chain, without system messages."""

    id: str
    language: str
    transcript: Transcript
    questions: Sequence[Question]

    @cached_property
    def tokens(self) -> list[int]:
        return [message.tokens for message in self.transcript.chain]

    @cached_property
    def lines(self) -> list[str]:
        """The messages as they stand in a memory block, and in the answer of a search."""
        return [
            "\n> ".join([f"[{number}] {message.role.value}:", *break_labels(message.text).splitlines()])
            for number, message in enumerate(self.transcript.chain, 1)
        ]


def load(path: Path, counter: TokenCounter) -> list[Dialogue]:
    """The conversations in a file that have questions with evidence and are long enough; raises `Unreadable`."""
    found = (_dialogue(each, counter) for each in recorded.load(path) if each.questions)
    return [each for each in found if sum(each.tokens) >= MIN_TOKENS * max(SHARES)]


def _dialogue(conversation: Conversation, counter: TokenCounter) -> Dialogue:
    roles = [message["role"] for message in conversation.messages]
    chained = (index for index, role in enumerate(roles) if role not in ("system", "developer"))
    place = {index: nth for nth, index in enumerate(chained)}
    questions = [each._replace(places=[place[index] for index in each.places]) for each in conversation.questions]
    return Dialogue(conversation.id, conversation.language, counted(conversation.messages, counter), questions)


class Figure(NamedTuple):
    """So many of all questions."""

    reached: int
    asked: int

    @property
    def percent(self) -> float:
        return 100 * self.reached / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %, in percent, as if questions were independent."""
        share, n = self.reached / self.asked, self.asked
        centre = share + Z * Z / (2 * n)
        spread = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
        low, high = ((centre + sign * spread) / (1 + Z * Z / n) for sign in (-1, 1))
        return 100 * max(low, 0.0), 100 * min(high, 1.0)


def tally(found: Iterable[tuple[C, bool]]) -> dict[C, Figure]:
    """The figure of each cell from its outcomes."""
    outcomes = list(found)
    asked = Counter(cell for cell, _ in outcomes)
    reached = Counter(cell for cell, reaches in outcomes if reaches)
    return {cell: Figure(reached[cell], number) for cell, number in asked.items()}
