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
    """A text wanted from the model that settings give `role`; `max_tokens` bounds the answer.

    `record` are the most tokens of what is wanted of it, where more may stand beside that; None for all of it.

    With `view`, a message list as JSON text, the model is asked to go on from that list itself: `user` follows it as
    one more message, and `system` is not sent. So the upstream's cache of the list is hit.
    """

    system: str
    user: str
    max_tokens: int
    role: str = SUMMARIZER
    view: str | None = None
    record: int | None = None


@dataclass(frozen=True, slots=True)
class Ballot:
    """Votes wanted on one prompt: `k` at once, stopped early, refilled one by one up to `max_attempts` calls.

    `at_once`: the first `k` come from one call, where the upstream bills its prompt once.
    """

    system: str
    user: str
    k: int
    max_attempts: int
    max_tokens: int
    role: str = JUDGE
    at_once: bool = False


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
    """No text came; `reason` is one kebab-case word (`timeout`, `rate-limited`, `unreachable`, …)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote; `yes` is None where it could not be read, and `error` says why in one kebab-case word."""

    yes: bool | None
    reasoning: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Votes:
    """What came of a ballot, in the order in which it came; `calls` that were made, `tokens` of them in all."""

    votes: tuple[Vote, ...]
    calls: int = 0
    tokens: int = 0


Result = Answer | Failure | Votes
