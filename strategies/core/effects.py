"""Effects: what a strategy asks of the outside world, as data.

A strategy yields a tuple of effects. They are resolved concurrently, and the strategy is sent a tuple with one result
for each. It never calls a model itself, so tests simply send it answers.
"""

from __future__ import annotations

from dataclasses import dataclass

SUMMARIZER = "summarizer"
JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Ask:
    """Asks a model for one text."""

    system: str
    """The system message; not sent with `view`."""
    user: str
    """The user message."""
    max_tokens: int
    """The maximum number of tokens of the answer."""
    role: str = SUMMARIZER
    """Names the settings that choose the model."""
    view: str | None = None
    """A message list as JSON text, from which the model goes on: `user` is put after it as one more message.

    The upstream has read that list before, so its prompt cache is hit.
    """
    record: int | None = None
    """The maximum number of tokens of the record, if the answer may have more than the record; else None."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """Asks a model for votes on one prompt; `strategies.core.ballot` has the rule."""

    system: str
    user: str
    k: int
    """How many votes are wanted; as many calls start together."""
    max_attempts: int
    """The maximum number of calls in all, those that replace invalid votes included."""
    max_tokens: int
    """The maximum number of tokens of one vote."""
    role: str = JUDGE
    """Names the settings that choose the model."""
    at_once: bool = False
    """Whether the first `k` votes come from one call, for which the upstream bills the prompt once."""


Effect = Ask | Ballot


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's text; `finish_reason` is the upstream's, `tokens` are those of prompt and answer together."""

    text: str
    finish_reason: str = "stop"
    tokens: int = 0
    called_tools: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that brought no text; `reason` is one kebab-case word (`timeout`, `rate-limited`, `unreachable`, …)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote. `yes` is None if it is not valid, and `error` then says why in one kebab-case word."""

    yes: bool | None
    reasoning: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of a ballot in the order in which they came, and how many `calls` and `tokens` they took."""

    votes: tuple[Vote, ...]
    calls: int = 0
    tokens: int = 0


Result = Answer | Failure | Votes
