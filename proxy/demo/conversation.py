"""The demo's conversation: planted turns, then a recorded session, and questions at the end."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, NamedTuple

Message = Mapping[str, Any]


class Step(NamedTuple):
    """One request of the conversation: all messages so far, and the recorded reply."""

    number: int
    turn: int
    messages: Sequence[Message]
    reply: Message


class Question(NamedTuple):
    """A question about an early message, and the text (`evidence`) without which nobody can answer it."""

    told_in: str
    text: str
    evidence: str

    @property
    def planted(self) -> bool:
        """Whether the answer is in a planted turn, rather than in a tool's output in the recording."""
        return self.told_in.startswith("turn")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages with the system message first, tool definitions, and questions for the end."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    questions: Sequence[Question]

    def steps(self) -> Iterator[Step]:
        """Yields one step for each assistant message."""
        number = turn = 0
        for i, message in enumerate(self.messages):
            turn += message["role"] == "user"
            if message["role"] == "assistant":
                number += 1
                yield Step(number, turn, self.messages[:i], message)

    def first(self, requests: int | None) -> Conversation:
        """The conversation up to the reply to the last of `requests` requests; all of it for None."""
        steps = list(self.steps())
        if requests is None or requests >= len(steps):
            return self
        last = steps[requests - 1]
        return replace(self, messages=[*last.messages, last.reply])

    def asking(self, question: Question) -> list[Message]:
        """The whole history with a question at its end."""
        return [*self.messages, {"role": "user", "content": question.text}]


def load() -> Conversation:
    """Loads the conversation that comes with the program."""
    here = files(__package__)
    planted = tomllib.loads(here.joinpath("planted.toml").read_text("utf-8"))
    recorded = json.loads(gzip.decompress(here.joinpath("conversation.json.gz").read_bytes()))
    opening: list[Message] = [{"role": "system", "content": planted["system"]}]
    for turn in planted["turns"]:
        opening += ({"role": role, "content": turn[role]} for role in ("user", "assistant"))
    return Conversation(
        messages=[*opening, *recorded["messages"]],
        tools=recorded["tools"],
        questions=[Question(**each) for each in planted["questions"]],
    )
