"""What a strategy is, and what it may be besides.

Every strategy condenses. One that is also `Triggering` has a measure of its own beside the marks; one that is also
`Marking` has marks of its own in their place; one that is also `Injecting` says how memory comes before a user message;
one that is also `Judging` lets a model vote on whether a view should be condensed, away from the request's path. A
strategy inherits what it is besides: every request asks each of its stages,
and a look at the methods would cost more than all else that is decided for a small one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from strategies.core.budget import Budget, Marks
from strategies.core.condensation import Condensation
from strategies.core.effects import Effect, Result
from strategies.core.plan import Plan
from strategies.core.view import View

Steps = Generator[tuple[Effect, ...], tuple[Result, ...], Plan]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one round of votes on a view.

    `digest` is the chain digest of the transcript's end and `count` its chain messages, `tokens` those of the view,
    `at` in seconds since the epoch. `metadata` is JSON: every vote, the counts and the threshold. `earlier` are the
    chain digests before that of the end, newest first, as far as clients may rewrite what they sent last.
    """

    yes: bool
    digest: bytes
    count: int
    tokens: int
    at: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    earlier: tuple[bytes, ...] = ()


Polling = Generator[tuple[Effect, ...], tuple[Result, ...], Verdict]


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of the session: the time in seconds since the epoch, and what was done before.

    `verdicts` are those of all branches, oldest first; `verdict` is the one that this run follows. `seen` says when
    messages were first seen: pairs of a chain length and the time at which the messages up to it had come, in order.
    With `continues`, a summarizer is asked to go on from the view itself.
    """

    now: float = 0.0
    condensations: tuple[Condensation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    verdict: Verdict | None = None
    seen: tuple[tuple[int, float], ...] = ()
    continues: bool = False

    def first_seen(self, index: int) -> float | None:
        """When the chain message at `index` was first seen; None where that is not known."""
        return next((at for count, at in self.seen if index < count), None)


class Strategy(Protocol):
    """Plans what to do with a view. Pure: the same arguments and results give the same plan.

    `asks` says whether `condense` may yield effects; one that never does is run where nobody may wait.
    `options` is the frozen dataclass of its options.
    """

    name: ClassVar[str]
    asks: ClassVar[bool]

    def condense(self, view: View, budget: Budget, past: Past) -> Steps:
        """Yields effects, is sent their results, and returns a plan; raises `StrategyError` for none."""
        ...


class Triggering(ABC):
    """A strategy with a trigger of its own."""

    @abstractmethod
    def due(self, view: View, budget: Budget) -> bool:
        """Whether the view should be condensed whatever the marks say."""


class Marking(ABC):
    """A strategy with marks of its own, in place of the settings'."""

    @abstractmethod
    def marks(self, budget: Budget) -> Marks:
        """Its marks for a budget that has those of the settings."""


@dataclass(frozen=True, slots=True)
class Injection:
    """How memory is put before a user message: `unasked` or not, at most `top_k` passages, at most `max_tokens`."""

    unasked: bool = False
    top_k: int = 5
    max_tokens: int = 800


class Injecting(ABC):
    """A strategy that goes with memory: under it a block is put before each user message as it says."""

    @property
    @abstractmethod
    def injection(self) -> Injection:
        """Whether that is done where nobody asks for it, and how."""


class Judging(ABC):
    """A strategy that asks a judge. Under it the `trigger` mark condenses nothing."""

    @property
    @abstractmethod
    def inline(self) -> bool:
        """Whether votes are held before forwarding instead of after the reply."""

    @abstractmethod
    def skips(self, view: View, budget: Budget, past: Past) -> str:
        """Why no vote should be held on a view now, as a kebab-case word; "" where one should."""

    @abstractmethod
    def judge(self, view: View, budget: Budget, past: Past) -> Polling:
        """Yields a ballot, is sent its votes, and returns the verdict."""

    @abstractmethod
    def state(self, view: View, past: Past, skipped: str) -> Mapping[str, Any]:
        """The last judgement state as JSON, for people; `skipped` is what `skips` said."""

    @abstractmethod
    def drifted(self, view: View) -> View | None:
        """The view without what came between the judged one and this request, which `view` carries behind its head.

        None where that is to stand, or cannot be dropped.
        """
