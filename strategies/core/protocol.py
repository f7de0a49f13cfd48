"""The protocol of a strategy, and the optional roles that it may also have.

Every strategy is a `Strategy`: it condenses a view. It may also be

    Triggering   it has a trigger of its own besides the marks
    Marking      it has marks of its own in place of the settings'
    Injecting    it says how memory is put before a user message
    Judging      it lets a model vote, off the request's path, on whether a view should be condensed

The optional roles are base classes and not protocols: every request checks each of its stages for each role, and a
structural check of the methods would cost more than all other decisions about a small request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from strategies.core.budget import Budget, Marks
from strategies.core.condensation import Condensation
from strategies.core.effects import Effect, Result
from strategies.core.plan import Plan
from strategies.core.view import View

Steps = Generator[tuple[Effect, ...], tuple[Result, ...], Plan]


@dataclass(frozen=True, slots=True)
class Verdict:
    yes: bool | None
    """None if no vote could be read, so that there is no verdict."""
    digest: bytes
    """The chain digest at the end of the transcript that was judged."""
    message_count: int
    """How many chain messages that transcript had."""
    tokens: int
    voted_at: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    earlier_digests: tuple[bytes, ...] = ()
    """The chain digests just before `digest`, newest first: one for each message that a client may rewrite later."""
    failure: str = ""
    """Why there is no verdict, as a kebab-case word; "" if there is one."""

    def applies_to(self, digests: Sequence[bytes]) -> bool:
        return 0 < self.message_count <= len(digests) and digests[self.message_count - 1] == self.digest


Polling = Generator[tuple[Effect, ...], tuple[Result, ...], Verdict]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What is known of the session when a strategy runs."""

    now: float = 0.0
    condensations: tuple[Condensation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """The verdicts of all branches, oldest first."""
    verdict: Verdict | None = None
    """The verdict that this run follows, if any."""
    seen: tuple[tuple[int, float], ...] = ()
    """When messages were first seen: pairs (chain length, time by which all messages up to it had come), in order."""
    continue_view: bool = False
    """Whether a summarizer is asked to continue the view itself, so that the upstream's prompt cache is hit."""

    def first_seen(self, index: int) -> float | None:
        """When the chain message at `index` was first seen, in seconds since the epoch; None if that is unknown."""
        return next((at for count, at in self.seen if index < count), None)


class Strategy(Protocol):
    """Plans how to condense a view. Pure: the same arguments and results give the same plan."""

    name: ClassVar[str]
    asks: ClassVar[bool] = False
    """Whether `condense` may yield effects. A strategy that never does may run while a client waits."""
    may_cut_newest_results: ClassVar[bool] = False
    """Whether its plans may shorten the tool results of the newest round, which all other plans must leave alone."""

    def condense(self, view: View, budget: Budget, session: SessionFacts) -> Steps:
        """Yields effects, is sent their results, and returns a plan; raises `StrategyError` if it has none.

        A plan may replace or drop `view.items[:view.last_cut]`, but not the items `view.task`, `view.replacement` and
        `view.stays`. Its spans begin and end at `view.structure.cuts`. Raise `NothingToDo` if nothing is left to drop.
        A strategy that asks nothing is a generator too: `yield from ()`.
        """


class Triggering(ABC):
    @abstractmethod
    def is_due(self, view: View, budget: Budget) -> bool:
        """Whether the view should be condensed, whatever the marks say."""


class Marking(ABC):
    @abstractmethod
    def marks(self, budget: Budget) -> Marks:
        """The strategy's marks, for a budget with the marks of the settings."""


@dataclass(frozen=True, slots=True)
class Injection:
    """How memory is put before a user message: at most `top_k` passages in at most `max_tokens`.

    `unasked` says whether this is done if neither request nor session chose a memory mode. None stands for what the
    settings say.
    """

    unasked: bool | None = None
    top_k: int | None = None
    max_tokens: int | None = None


class Injecting(ABC):
    @property
    @abstractmethod
    def injection(self) -> Injection: ...


class Shortened(NamedTuple):
    """A view without some messages after its head, and the strategy's metadata, which says which ones."""

    view: View
    metadata: Mapping[str, Any]


class Judging(ABC):
    """A strategy that asks judges. Under it, reaching the `trigger` mark alone condenses nothing."""

    @property
    @abstractmethod
    def inline(self) -> bool:
        """Whether votes are held before forwarding instead of after the reply."""

    @property
    @abstractmethod
    def is_bound(self) -> bool:
        """Whether the session's allowance bounds what votes may spend."""

    @abstractmethod
    def has_judged_enough(self, view: View, session: SessionFacts) -> bool:
        """Whether no vote will be held on this history any more."""

    @abstractmethod
    def skip_reason(self, view: View, budget: Budget, session: SessionFacts) -> str:
        """Why no vote should be held on this view now, as a kebab-case word; "" if one should be held."""

    @abstractmethod
    def judge(self, view: View, budget: Budget, session: SessionFacts) -> Polling:
        """Yields a ballot, is sent its votes, and returns the verdict."""

    @abstractmethod
    def state(self, view: View, session: SessionFacts, skipped: str) -> Mapping[str, Any]:
        """The state of judging as JSON, for people; `skipped` is what `skip_reason` returned."""

    @abstractmethod
    def shortened(self, view: View, metadata: Mapping[str, Any]) -> Shortened | None:
        """The view without the messages after the head that are left out when a judged record is first applied.

        `metadata` is the record's. None if no message should or can be dropped.
        """
