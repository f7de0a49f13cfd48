"""Effects: what a strategy asks of the outside world, as data.

A strategy yields a tuple of effects. They are resolved concurrently, and the strategy is sent a tuple with one result
for each. It never calls a model itself, so tests simply send it answers.

The votes of a ballot are read and counted here too. A vote is a text with its reasoning in `<reasoning>` and exactly
one `<decision>`, YES or NO in capitals. Any other text is invalid, and `Vote.error` says why.

docs/internals/strategies.md has the rule of a ballot. The first k calls start together, and the outcome is final as
soon as no later vote could change it; running calls are then abandoned. Calls that brought no valid vote are repeated
one by one, while fewer than k votes are valid and attempts are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strategies.core.parsing import tag_contents, without_tags, without_thoughts

SUMMARIZER = "summarizer"
JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class Ask:
    system: str  # the system message; not sent with `view`
    user: str
    max_tokens: int
    role: str = SUMMARIZER
    view: str | None = None
    """A message list as JSON text that the model continues: `user` is added as its last message.

    The upstream has read that list before, so its prompt cache is hit.
    """
    record: int | None = None
    """The maximum number of tokens of the record alone, if the answer may contain more than the record; else None."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """Asks a model for votes on one prompt; `strategies.core.effects` has the rule."""

    system: str
    user: str
    k: int  # how many votes are wanted; this many calls start together
    max_attempts: int  # the maximum number of calls, including those that replace invalid votes
    max_tokens: int
    role: str = JUDGE
    at_once: bool = False
    """Whether one call brings the first `k` votes, so that the upstream bills the prompt only once."""
    refills: bool = False
    """Whether votes are filled up even if none of the first answers can be read; else such a round ends early."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Asks the request's own upstream for its compaction of a list, which begins the view that was forwarded."""

    view: str  # the message list as JSON text
    room: int  # the tokens of the window that it leaves, for the answer


Effect = Ask | Ballot | Compact


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's text. `finish_reason` is the upstream's; `tokens` counts prompt and answer together."""

    text: str
    finish_reason: str = "stop"
    tokens: int = 0
    called_tools: bool = False
    reasoned: bool = False  # whether the model has reasoned beside the text


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that brought no text; `reason` is one kebab-case word (`timeout`, `rate-limited`, `unreachable`, …)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote. If it is invalid, `yes` is None and `error` says why in one kebab-case word."""

    yes: bool | None
    reasoning: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Votes:
    """The votes of a ballot in the order in which they came, and how many `calls` and `tokens` they took."""

    votes: tuple[Vote, ...]
    calls: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Compacted:
    """An upstream's compaction: the messages that stand for the list, as JSON texts, which only its maker can read.

    `maker` names the upstream and the family of its model; `tokens` is the cost of the call.
    """

    messages: tuple[str, ...]
    maker: str
    form: str = ""  # by which of the vendor's forms it was asked for
    tokens: int = 0


Result = Answer | Failure | Votes | Compacted


# -- votes -------------------------------------------------------------------------------------------------------

_REASONING, _DECISION = "reasoning", "decision"
_WORDS = {"YES": True, "NO": False}


def read_vote(text: str) -> Vote:
    """The vote in a judge's text.

    Errors: `empty`, `no-decision`, `two-decisions`, `bad-decision`, `no-reasoning`. A decision inside the reasoning
    does not count.
    """
    answer = without_thoughts(text).strip()
    if not answer:
        return Vote(None, error="empty")
    reasoning = next(tag_contents(answer, _REASONING), "").strip()
    if len(list(tag_contents(answer, _DECISION))) > 1:
        return Vote(None, reasoning, "two-decisions")
    decision = next(tag_contents(without_tags(answer, _REASONING), _DECISION), None)
    if decision is None:
        return Vote(None, reasoning, "no-decision")
    yes = _WORDS.get(decision.strip())
    if yes is None:
        return Vote(None, reasoning, "bad-decision")
    return Vote(yes, reasoning) if reasoning else Vote(None, error="no-reasoning")


class Tally(NamedTuple):
    yes: bool
    threshold: int  # how many of the valid votes had to say YES
    valid: int
    yes_votes: int
    no_votes: int


def tally(votes: Sequence[Vote], k: int) -> Tally:
    yes, no = _counts(votes)
    threshold = _majority(k if _is_certain(yes, no, k) else min(yes + no, k))
    return Tally(0 < threshold <= yes, threshold, yes + no, yes, no)


def _counts(votes: Sequence[Vote]) -> tuple[int, int]:
    """How many votes say YES, and how many NO."""
    return sum(vote.yes is True for vote in votes), sum(vote.yes is False for vote in votes)


def _majority(votes: int) -> int:
    return (votes + 1) // 2


def _is_certain(yes: int, no: int, k: int) -> bool:
    """Whether none of the remaining votes of `k`, valid or not, can change the outcome."""
    return yes >= _majority(k) or no > k - _majority(k)


class Polls:
    """Counts votes as they come in.

    The caller asks `start_calls` how many calls to start now, and passes the outcome of each to `add_vote`. Once
    `is_decided` is true, running calls may be abandoned.
    """

    def __init__(self, k: int, max_attempts: int) -> None:
        self._k = k
        self._left = max_attempts
        self._running = 0
        self.votes: list[Vote] = []

    @property
    def is_decided(self) -> bool:
        return _is_certain(*_counts(self.votes), self._k)

    def start_calls(self) -> int:
        """Returns how many calls to start now, and counts them as started."""
        if self._running or self.is_decided or sum(_counts(self.votes)) >= self._k:
            return 0
        wanted = 1 if self.votes else self._k
        self._running = min(wanted, self._left)
        self._left -= self._running
        return self._running

    def add_vote(self, vote: Vote) -> None:
        self._running -= 1
        self.votes.append(vote)
