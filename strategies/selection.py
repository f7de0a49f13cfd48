"""Which messages of a view are forgotten and which stay: the selection of `semantic`.

A *unit* is forgotten or kept as a whole: what stands between two cuts (a round with all its results), and a user's
message with the last round of its turn, so that no question is left without its answer. Units lie in zones, and
are forgotten in this order until no more events and tokens are left than wanted:

    opening    what came before the first user message; goes whenever anything goes
    middle     lowest score first, of equals the oldest
    tail       the newest events, oldest first; only for tokens
    head       the first events, from the first user message on; only for tokens, last of all

The first and the last user message and all behind the view's limit are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from strategies.core.view import View


class Zone(IntEnum):
    """Where a unit lies, in the order in which units are forgotten."""

    OPENING = 0
    MIDDLE = 1
    TAIL = 2
    HEAD = 3


class Unit(NamedTuple):
    """Items that are kept or forgotten together, in order; `tokens` of them in all."""

    items: tuple[int, ...]
    tokens: int


class Aim(NamedTuple):
    """What should be left: the most `events`, of these `first` and `last` ones; `tokens` that must go at least."""

    events: int
    first: int
    last: int
    tokens: int


class Selection(NamedTuple):
    """Items that are forgotten, in order, an earlier replacement among them; `tokens` of them in all."""

    forgotten: tuple[int, ...]
    tokens: int

    @property
    def end(self) -> int:
        """The item behind the last one that is forgotten."""
        return self.forgotten[-1] + 1 if self.forgotten else 0


def selected(view: View, aim: Aim, score: Callable[[Unit], float]) -> Selection:
    """What is forgotten of a view; nothing, not even an earlier replacement, where no unit may be."""
    earlier = () if view.replacement is None else (view.replacement,)
    ranked = sorted(_ranked(view, aim, score))
    forgotten = list(earlier)
    tokens = sum(view.items[i].message.tokens for i in earlier)
    for zone, _, _, unit in ranked:
        # The record that will stand there is an event too.
        left = view.size - len(forgotten) + 1
        is_enough = left <= aim.events and tokens >= aim.tokens and len(forgotten) > len(earlier)
        if is_enough and zone is not Zone.OPENING:
            break
        if zone > Zone.MIDDLE and tokens >= aim.tokens:
            break
        forgotten.extend(unit.items)
        tokens += unit.tokens
    return Selection(tuple(sorted(forgotten)), tokens) if len(forgotten) > len(earlier) else Selection((), 0)


def _ranked(view: View, aim: Aim, score: Callable[[Unit], float]) -> Iterator[tuple[Zone, float, int, Unit]]:
    """Units that may be forgotten, with what they are sorted by."""
    for unit in forgettable(view):
        zone = _zone(view, unit, aim)
        yield zone, score(unit) if zone is Zone.MIDDLE else 0.0, unit.items[0], unit


def _zone(view: View, unit: Unit, aim: Aim) -> Zone:
    task = view.transcript.task
    sources = [source for i in unit.items if (source := view.items[i].source) is not None]
    if task is not None and any(source < task for source in sources):
        return Zone.OPENING
    if any(source < (task or 0) + aim.first for source in sources):
        return Zone.HEAD
    return Zone.TAIL if unit.items[-1] >= view.size - aim.last else Zone.MIDDLE


def forgettable(view: View) -> list[Unit]:
    """All units of a view that no rule protects, oldest first."""
    stays = {view.task, view.last_user, view.replacement}
    found = (unit for unit in _units(view) if unit[-1] < view.limit and stays.isdisjoint(unit))
    return [Unit(items, sum(view.items[i].message.tokens for i in items)) for items in found]


def _units(view: View) -> Iterator[tuple[int, ...]]:
    """Items between cuts; those of a user's message together with those of the last round of its turn."""
    spans = list(pairwise(i for i, is_cut in enumerate(view.structure.cuts) if is_cut))
    span_of = {i: span for span in spans for i in range(*span)}
    asking = {span_of[turn.user] for turn in view.structure.turns if turn.user is not None}
    pairs = ((span_of[user], span_of[answer]) for user, answer in _answered(view))
    answers = {question: answer for question, answer in pairs if answer not in asking}
    taken = set(answers.values())
    for span in spans:
        if span in answers:
            yield (*range(*span), *range(*answers[span]))
        elif span not in taken:
            yield tuple(range(*span))


def _answered(view: View) -> Iterator[tuple[int, int]]:
    """(user's message, last round of its turn) by their first items; the task is stated for all that follows."""
    for turn in view.structure.turns:
        if turn.user is not None and turn.user != view.task and turn.rounds:
            yield turn.user, turn.rounds[-1].start
