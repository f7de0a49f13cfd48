"""Annotated dialogues: messages, and questions with the messages that hold the answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from strategies.core.messages import Counter, Reader
from strategies.core.transcript import Transcript
from strategies.memory.passages import Entry, message_entries

LEAST_TOKENS = 300
"""Dialogues whose sixteenth has fewer tokens are left out."""
SHARES = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the indexes of the messages that together answer it."""

    text: str
    evidence: frozenset[int]


@dataclass(frozen=True)
class Dialogue:
    """One conversation; `tokens` has those of each message."""

    id: str
    language: str
    transcript: Transcript
    questions: tuple[Question, ...]

    @cached_property
    def tokens(self) -> list[int]:
        """Tokens of each message."""
        return [message.tokens for message in self.transcript.chain]

    @cached_property
    def texts(self) -> list[str]:
        """The text of each message."""
        return [message.text for message in self.transcript.chain]

    @cached_property
    def entries(self) -> list[Entry]:
        """What can be found; the key is the message's index."""
        return [
            entry
            for place, message in enumerate(self.transcript.chain)
            for entry in message_entries(str(place), message, place)
        ]


def load(path: Path, counter: Counter) -> list[Dialogue]:
    """The dialogues in a file (JSON lines, gzipped or not) that have questions with evidence and are long enough."""
    found = (_dialogue(told, counter) for told in _lines(path) if any(each["evidence"] for each in told.get("qa", ())))
    return [each for each in found if sum(each.tokens) >= LEAST_TOKENS * max(SHARES)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _dialogue(told: dict[str, Any], counter: Counter) -> Dialogue:
    """System messages are in no chain, so evidence is counted without them."""
    reader = Reader()
    messages = [reader.read(json.dumps(body), body, counter.message(body)) for body in told["messages"]]
    transcript = Transcript.of(messages)
    place = {index: nth for nth, index in enumerate(_chained(told["messages"]))}
    questions = (
        Question(each["question"], frozenset(place[index] for index in each["evidence"]))
        for each in told["qa"]
        if each["evidence"]
    )
    return Dialogue(told["id"], told["lang"], transcript, tuple(questions))


def _chained(messages: list[dict[str, Any]]) -> Iterator[int]:
    return (index for index, body in enumerate(messages) if body["role"] not in ("system", "developer"))
