"""How important the messages of a recorded conversation are to `semantic`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxy.quoting import one_line, printable
from proxy.replaying.recorded import Conversation
from proxy.replaying.report import grid
from strategies.core.messages import Reader, TokenCounter
from strategies.core.options import fill_options
from strategies.core.protocol import SessionFacts
from strategies.core.transcript import Transcript
from strategies.core.view import fold
from strategies.semantic import Semantic, SemanticOptions


class Scored(NamedTuple):
    """A message: its place in the file from 0, and its score from 0.15 to 0.9. No message has an age in a file."""

    message: int
    role: str
    score: float
    tokens: int
    begins: str


def scored(conversation: Conversation, counter: TokenCounter, options: Mapping[str, object]) -> list[Scored]:
    """The scores of all messages but system messages, which always stay; `options` are those of `semantic`."""
    reader = Reader()
    messages = [
        reader.read(json.dumps(body), body, counter.message(body), counter.dialect) for body in conversation.messages
    ]
    places = {id(message): place for place, message in enumerate(messages)}
    view = fold(Transcript.of(messages), (), 0, counter)
    importance = Semantic(fill_options(SemanticOptions(), options)).importance(view, SessionFacts())
    return [
        Scored(places[id(message)], message.role.value, score, message.tokens, printable(one_line(message.text), 60))
        for i, message in enumerate(item.message for item in view.items)
        if id(message) in places and (score := importance(i)) is not None
    ]


def table(name: str, found: Sequence[Scored]) -> str:
    """An aligned text table, the conversation's name above it."""
    rows = [(f"{one.role} {one.message}", one.begins, f"{one.score:.2f}", f"{one.tokens:,}") for one in found]
    return "\n".join([name, *grid(("message", "begins", "score", "tokens"), rows, texts=2)])
