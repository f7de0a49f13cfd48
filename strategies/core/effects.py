"""What a strategy may want from the outside, as data.

A strategy yields a tuple of effects, which are resolved at the same time, and is sent a tuple with one result
for each. It never calls a model itself, so it is tested by feeding it answers.
"""

from __future__ import annotations

from dataclasses import dataclass

SUMMARIZER = "summarizer"
JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Ask:
    """A text wanted from the model that settings give `role`; `max_tokens` bounds the answer."""

    system: str
    user: str
    max_tokens: int
    role: str = SUMMARIZER


@dataclass(frozen=True, slots=True)
class Ballot:
    """Votes wanted on one prompt: `k` at once, stopped early, refilled up to `max_attempts` calls."""

    system: str
    user: str
    k: int
    max_attempts: int
    max_tokens: int
    role: str = JUDGE


Effect = Ask | Ballot


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's text; `finish_reason` as the upstream gave it, `tokens` of the call in all."""

    text: str
    finish_reason: str = "stop"
    tokens: int = 0
    called_tools: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """No text came; `reason` is one kebab-case word (`timeout`, `http-429`, `unreachable`, …)."""

    reason: str


Result = Answer | Failure
