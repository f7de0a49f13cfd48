"""The demo's conversation: planted turns, then a recorded session, and questions at the end."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

from proxy.replaying.play import request_ends
from proxy.replaying.recorded import Conversation, Message, Question
from strategies.core.messages import content_text

PLANTED_TURNS = 3


def load() -> Conversation:
    """Loads the conversation that comes with the program."""
    here = files(__package__)
    planted = tomllib.loads(here.joinpath("planted.toml").read_text("utf-8"))
    recorded = json.loads(gzip.decompress(here.joinpath("conversation.json.gz").read_bytes()))
    messages: list[Message] = [{"role": "system", "content": planted["system"]}]
    for turn in planted["turns"]:
        messages += ({"role": role, "content": turn[role]} for role in ("user", "assistant"))
    messages += recorded["messages"]
    questions = [_question(each["text"], each["evidence"], messages) for each in planted["questions"]]
    return Conversation("demo", messages, recorded["tools"], questions)


def _question(text: str, evidence: str, messages: Sequence[Message]) -> Question:
    told = (i for i, message in enumerate(messages) if evidence in content_text(message.get("content")))
    return Question(text, [evidence], [next(told)])


def first(conversation: Conversation, requests: int | None) -> Conversation:
    """The conversation up to the reply to the last of `requests` requests; all of it for None."""
    ends = list(request_ends(conversation))
    if requests is None or requests >= len(ends):
        return conversation
    return replace(conversation, messages=conversation.messages[: ends[requests - 1] + 1])


def turn_of(conversation: Conversation, end: int) -> int:
    """The turn to which the last of the first `end` messages belongs."""
    return sum(message["role"] == "user" for message in conversation.messages[:end])


def is_planted(question: Question) -> bool:
    """Whether the answer is in a planted turn, rather than in a tool's output in the recording."""
    return question.places[0] <= 2 * PLANTED_TURNS
