"""The protocol of a strategy, its options, and the optional roles that it may also have.

Every strategy is a `Strategy`: it condenses a view. It may also be

    Triggering   it has a trigger of its own besides the marks
    Marking      it has marks of its own in place of the settings'
    Injecting    it says how memory is put before a user message
    Judging      it lets a model vote, off the request's path, on whether a view should be condensed

The optional roles are base classes and not protocols: every request checks each of its stages for each role, and a
structural check of the methods would cost more than all other decisions about a small request.

The options of a strategy are a frozen dataclass whose fields carry their bounds, filled from texts or settings. A field
is declared as `option(default, at_least, at_most)`. A value must have the type of the default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from difflib import SequenceMatcher
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from strategies.core.budget import Budget, Marks
from strategies.core.condensation import Condensation
from strategies.core.effects import Effect, Result
from strategies.core.errors import OptionError
from strategies.core.plan import Plan
from strategies.core.view import View

OptionsT = TypeVar("OptionsT", bound="Options")
Value = bool | int | float | str

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Options:
    """The base of all options; a strategy without options uses this class itself.

    If there is an option `mode`, `preset` says which values of other options each mode stands for.
    """

    @property
    def conflict(self) -> str:
        """Why these values cannot hold together, naming the options; "" if they can."""
        return ""

    def preset(self, mode: str) -> Mapping[str, Value]:
        return {}


def option(default: Value, at_least: float | None = None, at_most: float | None = None, one_of: str = "") -> Any:
    """Declares a field of an `Options` class; `one_of` lists the allowed words of a text, separated by spaces."""
    return field(default=default, metadata={"low": at_least, "high": at_most, "words": one_of.split()})


@dataclass(frozen=True, slots=True)
class LedgerOptions(Options):
    """The options that every pipeline has besides those of its stages."""

    said: bool = option(default=True)


def fill_options(options: OptionsT, values: Mapping[str, object]) -> OptionsT:
    """`options` with `values` filled in; raises an `OptionError` that names the option and its allowed values."""
    by_name = {declared.name: declared for declared in fields(options)}
    for name in values:
        if name not in by_name:
            raise unknown_option(name, by_name)
    filled = replace(options, **{name: _checked(by_name[name], value) for name, value in values.items()})
    if filled.conflict:
        raise OptionError(filled.conflict)
    return filled


def unknown_option(name: str, known: Mapping[str, Field[Any]]) -> OptionError:
    """The error for an unknown option. It suggests the nearest of the `known` options, and lists them all."""
    if not known:
        return OptionError(f"unknown option '{name}'; known: none")
    nearest = max(known, key=lambda written: SequenceMatcher(None, known[written].name, name.lower()).ratio())
    return OptionError(f"unknown option '{name}'; did you mean '{nearest}'? Known: {', '.join(known)}")


def expand_mode(options: Options, values: Mapping[str, object]) -> dict[str, object]:
    """`values` and those that their `mode` stands for; an explicit value wins over the mode's."""
    return {**options.preset(str(values.get("mode", ""))), **values}


def _checked(declared: Field[Any], value: object) -> Value:
    default = cast(Value, declared.default)
    try:
        typed = _convert(type(default), value)
        if _within(declared, typed):
            return typed
    except (KeyError, TypeError, ValueError):
        pass
    raise OptionError(f"'{declared.name}' must be {_expected(declared)}, not '{value}'")


def _convert(kind: type, value: object) -> Value:
    if kind is bool:
        return value if isinstance(value, bool) else _WORDS[str(value).lower()]
    if isinstance(value, bool):
        raise TypeError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return cast(Value, kind(value))


def _within(declared: Field[Any], value: Value) -> bool:
    low, high, words = (declared.metadata[key] for key in ("low", "high", "words"))
    if isinstance(value, str):
        return not words or value in words
    return (low is None or value >= low) and (high is None or value <= high)


def _expected(declared: Field[Any]) -> str:
    low, high, words = (declared.metadata[key] for key in ("low", "high", "words"))
    if words:
        return "one of " + ", ".join(words)
    kind = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[type(declared.default)]
    bounds = [f"{name} {bound:g}" for name, bound in (("at least", low), ("at most", high)) if bound is not None]
    return " ".join((kind, " and ".join(bounds))).strip()


Steps = Generator[tuple[Effect, ...], tuple[Result, ...], Plan]


@dataclass(frozen=True, slots=True)
class Verdict:
    yes: bool | None  # None if no vote could be read, so that there is no verdict
    digest: bytes  # the chain digest at the end of the transcript that was judged
    message_count: int  # how many chain messages that transcript had
    tokens: int
    voted_at: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    earlier_digests: tuple[bytes, ...] = ()
    """The chain digests just before `digest`, newest first: one for each message that a client may rewrite later."""
    failure: str = ""  # why there is no verdict, as a kebab-case word; "" if there is one

    def applies_to(self, digests: Sequence[bytes]) -> bool:
        return 0 < self.message_count <= len(digests) and digests[self.message_count - 1] == self.digest


Polling = Generator[tuple[Effect, ...], tuple[Result, ...], Verdict]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What is known of the session when a strategy runs."""

    now: float = 0.0
    condensations: tuple[Condensation, ...] = ()
    verdicts: tuple[Verdict, ...] = ()  # the verdicts of all branches, oldest first
    verdict: Verdict | None = None  # the verdict that this run follows, if any
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
    continues: ClassVar[bool] = True
    """Whether its summarizer may be asked to continue the view; else it is shown the history as text in any case."""
    reads_opaque: ClassVar[bool] = False
    """Whether it goes on behind an opaque head. All others begin with the messages that it stands for."""
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
    for_turn: bool = False
    """Whether a block leaves with the next user message; else it stays until a condensation takes it in."""


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
