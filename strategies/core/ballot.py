"""Votes: how one is read, when enough of them are in, and what they decide. Nothing is called here.

A vote is one text with its reasoning in `<reasoning>` and exactly one `<decision>`, YES or NO in capitals. What is
anything else is no vote, and says why.

The rule: ⌈k/2⌉ of k votes must say YES. The first k calls begin together, and the outcome stands as soon as no vote to
come could change it; what still runs is then given up. Calls that brought no vote are made up for one by one, while
there are fewer than k votes and attempts are left. Where k are never reached, ⌈votes/2⌉ of those that there are must
say YES; without any the answer is NO.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from strategies.core.effects import Vote
from strategies.core.tags import within, without

_THOUGHTS = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_REASONING, _DECISION = "reasoning", "decision"
_WORDS = {"YES": True, "NO": False}


def read_vote(text: str) -> Vote:
    """The vote in a judge's text; without one `yes` is None and `error` says why.

    Errors: `empty`, `no-decision`, `two-decisions`, `bad-decision`, `no-reasoning`. A decision that stands only
    inside of the reasoning is none.
    """
    said = _THOUGHTS.sub("", text).strip()
    if not said:
        return Vote(None, error="empty")
    reasoning = next(within(said, _REASONING), "").strip()
    if len(list(within(said, _DECISION))) > 1:
        return Vote(None, reasoning, "two-decisions")
    decision = next(within(without(said, _REASONING), _DECISION), None)
    if decision is None:
        return Vote(None, reasoning, "no-decision")
    yes = _WORDS.get(decision.strip())
    if yes is None:
        return Vote(None, reasoning, "bad-decision")
    return Vote(yes, reasoning) if reasoning else Vote(None, error="no-reasoning")


class Tally(NamedTuple):
    """The outcome: `threshold` is how many of the `valid` votes had to say YES."""

    yes: bool
    threshold: int
    valid: int
    yes_votes: int
    no_votes: int


def tally(votes: Sequence[Vote], k: int) -> Tally:
    """What votes decide of which `k` were wanted; see the rule above."""
    yes = sum(vote.yes is True for vote in votes)
    no = sum(vote.yes is False for vote in votes)
    threshold = _majority(k if _is_certain(yes, no, k) else min(yes + no, k))
    return Tally(0 < threshold <= yes, threshold, yes + no, yes, no)


def _majority(votes: int) -> int:
    return (votes + 1) // 2


def _is_certain(yes: int, no: int, k: int) -> bool:
    """Whether no further vote of `k` can change the outcome, nor one that fails."""
    return yes >= _majority(k) or no > k - _majority(k)


class Polls:
    """Keeps count while votes come in. Whoever calls the judges asks `starts` how many calls to begin now, and hands
    in what came of each; once it is `decided`, calls that still run may be given up.
    """

    def __init__(self, k: int, max_attempts: int) -> None:
        self._k = k
        self._left = max_attempts
        self._running = 0
        self.votes: list[Vote] = []

    @property
    def decided(self) -> bool:
        """Whether the outcome is certain."""
        yes = sum(vote.yes is True for vote in self.votes)
        return _is_certain(yes, self._valid - yes, self._k)

    @property
    def _valid(self) -> int:
        return sum(vote.yes is not None for vote in self.votes)

    def starts(self) -> int:
        """How many calls to begin now; they count as begun."""
        if self._running or self.decided or self._valid >= self._k:
            return 0
        wanted = 1 if self.votes else self._k
        self._running = min(wanted, self._left)
        self._left -= self._running
        return self._running

    def take(self, vote: Vote) -> None:
        """Takes what came of one call, whether it could be read or not."""
        self._running -= 1
        self.votes.append(vote)
