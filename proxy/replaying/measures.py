"""What a strategy sent, saved, kept and cost on recorded conversations. Pure; all sizes are in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple


class Sent(NamedTuple):
    """A message as it was forwarded, and its tokens."""

    raw: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Decided:
    """One request: what the client sent, what went on in its place, and how it was decided.

    `messages` are the tokens of the forwarded messages, None where the request was refused; `shared` are those of them
    with which the forwarded request before began too; `overhead` is for tools and framing.
    """

    original: int
    messages: int | None
    shared: int
    overhead: int
    usable: int
    milliseconds: float
    own: int = 0
    condensed: bool = False
    degraded: bool = False

    @property
    def refused(self) -> bool:
        """Whether nothing was forwarded."""
        return self.messages is None

    @property
    def forwarded(self) -> int:
        """Tokens that went on; 0 where nothing did."""
        return 0 if self.messages is None else self.overhead + self.messages

    @property
    def overflows(self) -> bool:
        """Whether the upstream has no room for it and its reply, or it was refused for that."""
        return self.refused or self.forwarded > self.usable


@dataclass(frozen=True, slots=True)
class Played:
    """One conversation under one strategy; `kept` of `asked` questions have their evidence in the last view."""

    requests: Sequence[Decided]
    asked: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """All conversations under one strategy. Shares are None where there is nothing to have a share of."""

    strategy: str
    requests: int
    forwarded: int
    original: int
    own: int
    condensations: int
    overflows: int
    refused: int
    degraded: int
    saved_share: float | None
    cached_share: float | None
    evidence_share: float | None
    questions: int
    median_ms: float
    max_ms: float


@dataclass(slots=True)
class Tally:
    """Adds conversations up."""

    strategy: str
    played: list[Played] = field(default_factory=list)

    def summary(self) -> Summary:
        """The figures of all that was added."""
        requests = [each for played in self.played for each in played.requests]
        forwarded = sum(each.forwarded for each in requests)
        own = sum(each.own for each in requests)
        # A refused request saves nothing: nothing was sent, but nothing was answered either.
        original = sum(each.original for each in requests if not each.refused)
        spent = [each.milliseconds for each in requests]
        asked = sum(played.asked for played in self.played)
        return Summary(
            strategy=self.strategy,
            requests=len(requests),
            forwarded=forwarded,
            original=original,
            own=own,
            condensations=sum(each.condensed for each in requests),
            overflows=sum(each.overflows for each in requests),
            refused=sum(each.refused for each in requests),
            degraded=sum(each.degraded for each in requests),
            saved_share=saved_share(original, forwarded + own),
            cached_share=cached_share(requests),
            evidence_share=sum(played.kept for played in self.played) / asked if asked else None,
            questions=asked,
            median_ms=median(spent) if spent else 0.0,
            max_ms=max(spent, default=0.0),
        )


def size(messages: Iterable[Sent]) -> int:
    """Tokens of messages together."""
    return sum(message.tokens for message in messages)


def saved_share(original: int, spent: int) -> float | None:
    """What was saved of `original`, our own calls counted in `spent`; negative where it cost more."""
    return 1 - spent / original if original else None


def common_prefix(before: Sequence[Sent], after: Sequence[Sent]) -> int:
    """Tokens of the messages with which both lists begin."""
    total = 0
    for one, other in zip(before, after, strict=False):
        if one.raw != other.raw:
            break
        total += other.tokens
    return total


def cached_share(requests: Iterable[Decided]) -> float | None:
    """The share of message tokens that an upstream has seen at the same place in the request before."""
    forwarded = [(each.shared, each.messages) for each in requests if each.messages is not None]
    total = sum(messages for _, messages in forwarded)
    return sum(shared for shared, _ in forwarded) / total if total else None


def evidence_kept(evidence: Sequence[Sequence[str]], view: str) -> int:
    """How many questions have all their evidence, a list of texts each, word for word in the text of a view."""
    return sum(all(text in view for text in texts) for texts in evidence)
