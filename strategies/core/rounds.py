"""Turns, rounds and legal cuts.

A *turn* is a user message and all that follows up to the next one. A *round* is one assistant message and the
results that answer it; in protocols where a model's reply is several messages, all of them and their results. A *cut*
is an index where the list may be split: never between a call and one of its results, nor inside of a reply. A result
answers the newest call with its id, so ids may be reused; a result without an id answers the assistant message before
it.

`structure` finds all of them in one pass over any list, even one that a client has broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

from strategies.core.messages import Role, ToolCall


class Rounded(Protocol):
    """What `structure` needs to know about an item. A `role` of None, as of a replacement, belongs to no round."""

    @property
    def role(self) -> Role | None: ...
    @property
    def calls(self) -> tuple[ToolCall, ...]: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def goes_on(self) -> bool: ...


class Round(NamedTuple):
    """The items [start, end): one assistant message with its results."""

    start: int
    end: int


@dataclass(slots=True)
class Turn:
    """The items [start, end) of a turn. `user` is the index of its user message; None before the first one."""

    start: int
    end: int
    user: int | None
    rounds: list[Round] = field(default_factory=list)


class Structure(NamedTuple):
    """Turns in order, and for each index 0..n whether the list may be cut before it."""

    turns: list[Turn]
    cuts: list[bool]

    @property
    def rounds(self) -> list[Round]:
        """All rounds, oldest first."""
        return [each for turn in self.turns for each in turn.rounds]

    @property
    def newest_round(self) -> Round | None:
        """The last round, which only `shorten` may change."""
        return next((turn.rounds[-1] for turn in reversed(self.turns) if turn.rounds), None)


def structure(items: Sequence[Rounded]) -> Structure:
    """Finds turns, rounds and cuts in one pass."""
    turns: list[Turn] = []
    ties = _Ties(len(items))
    for i, item in enumerate(items):
        match item.role:
            case Role.USER:
                _close(turns, i)
                turns.append(Turn(i, i + 1, i))
            case Role.ASSISTANT:
                if i and item.goes_on and items[i - 1].role is Role.ASSISTANT:
                    _extend_round(turns[-1], i)
                    ties.tie(i - 1, i)
                else:
                    _current(turns, i).rounds.append(Round(i, i + 1))
                ties.calls(i, item.calls)
            case Role.TOOL:
                _extend_round(_current(turns, i), i)
                ties.result(i, item.answers)
    _close(turns, len(items))
    return Structure(turns, ties.cuts())


def newest_round(items: Sequence[Rounded]) -> Round | None:
    """The last round, found from the end without a pass over the list."""
    end = next((i for i in range(len(items), 0, -1) if items[i - 1].role in (Role.ASSISTANT, Role.TOOL)), None)
    if end is None:
        return None
    start = end - 1
    while start > 0 and items[start].role is not Role.ASSISTANT and items[start - 1].role is not Role.USER:
        start -= 1
    while start > 0 and items[start].goes_on and items[start - 1].role is items[start].role is Role.ASSISTANT:
        start -= 1
    return Round(start, end)


def _current(turns: list[Turn], i: int) -> Turn:
    if not turns:
        turns.append(Turn(i, i + 1, None))
    return turns[-1]


def _close(turns: list[Turn], end: int) -> None:
    if turns:
        turns[-1].end = end


def _extend_round(turn: Turn, i: int) -> None:
    if turn.rounds:
        turn.rounds[-1] = Round(turn.rounds[-1].start, i + 1)
    else:
        turn.rounds.append(Round(i, i + 1))


class _Ties:
    """Which neighbours must stay together, kept as a difference array so that the pass stays linear."""

    def __init__(self, size: int) -> None:
        self._steps = [0] * (size + 2)
        self._callers: dict[str, int] = {}
        self._last_caller: int | None = None

    def calls(self, i: int, calls: Iterable[ToolCall]) -> None:
        self._last_caller = i
        for call in calls:
            self._callers[call.id] = i

    def result(self, i: int, answers: Sequence[str]) -> None:
        for answered in answers or ("",):
            caller = self._callers.get(answered, self._last_caller) if answered else self._last_caller
            if caller is not None:
                self.tie(caller, i)

    def tie(self, i: int, other: int) -> None:
        self._steps[i + 1] += 1
        self._steps[other + 1] -= 1

    def cuts(self) -> list[bool]:
        return [open_ties == 0 for open_ties in accumulate(self._steps)][:-1]
