"""The selection of `semantic`: which messages of a view are forgotten and which stay.

A *unit* is forgotten or kept as a whole: the items between two cuts (a round with all its results), and a user's
message together with the last round of its turn, so that no question is left without its answer. Each unit lies in a
zone. Zones are forgotten in this order, until the wanted numbers of events and tokens are left:

    opening    messages before the first user message; they go whenever anything goes
    middle     lowest score first, of equal scores the oldest first
    tail       the newest events, oldest first; only to save tokens
    head       the first events, from the first user message on; only to save tokens, last of all

The first and the last user message, and everything behind the view's limit, always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from strategies.core.view import View


class Zone(IntEnum):
    """Where a unit lies; units are forgotten in this order."""

    OPENING = 0
    MIDDLE = 1
    TAIL = 2
    HEAD = 3


class Unit(NamedTuple):
    """Items that are kept or forgotten together, in order, and their tokens."""

    items: tuple[int, ...]
    tokens: int


class Aim(NamedTuple):
    """What should be left: at most `events`, among them the `first` and the `last` ones. At least `tokens` must go."""

    events: int
    first: int
    last: int
    tokens: int


class Selection(NamedTuple):
    """The items that are forgotten, in order, an earlier replacement among them, and their tokens."""

    forgotten: tuple[int, ...]
    tokens: int

    @property
    def end(self) -> int:
        """The item behind the last one that is forgotten."""
        return self.forgotten[-1] + 1 if self.forgotten else 0


def select(view: View, aim: Aim, score: Callable[[Unit], float]) -> Selection:
    """Selects what is forgotten of a view; nothing, not even an earlier replacement, if no unit may be forgotten."""
    earlier = () if view.replacement is None else (view.replacement,)
    ranked = sorted(_ranked(view, aim, score))
    forgotten = list(earlier)
    tokens = sum(view.items[i].message.tokens for i in earlier)
    for zone, _, _, unit in ranked:
        # The new record will be one event too.
        events = view.size - len(forgotten) + 1
        is_enough = events <= aim.events and tokens >= aim.tokens and len(forgotten) > len(earlier)
        if is_enough and zone is not Zone.OPENING:
            break
        if zone > Zone.MIDDLE and tokens >= aim.tokens:
            break
        forgotten.extend(unit.items)
        tokens += unit.tokens
    return Selection(tuple(sorted(forgotten)), tokens) if len(forgotten) > len(earlier) else Selection((), 0)


def _ranked(view: View, aim: Aim, score: Callable[[Unit], float]) -> Iterator[tuple[Zone, float, int, Unit]]:
    """Yields the units that may be forgotten, with their sort keys: zone, score, and first item."""
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
    """All units of a view that may be forgotten, oldest first."""
    stays = {view.task, view.replacement, *view.question}
    free = (unit for unit in _units(view) if unit[-1] < view.limit and stays.isdisjoint(unit))
    return [Unit(items, sum(view.items[i].message.tokens for i in items)) for items in free]


def _units(view: View) -> Iterator[tuple[int, ...]]:
    """Yields the items between cuts, those of a user's message together with those of the last round of its turn."""
    spans = list(pairwise(i for i, is_cut in enumerate(view.structure.cuts) if is_cut))
    span_of = {i: span for span in spans for i in range(*span)}
    asking = {span_of[turn.user] for turn in view.structure.turns if turn.user is not None}
    pairs = ((span_of[user], span_of[answer]) for user, answer in _questions_with_answers(view))
    answers = {question: answer for question, answer in pairs if answer not in asking}
    joined = set(answers.values())
    for span in spans:
        if span in answers:
            yield (*range(*span), *range(*answers[span]))
        elif span not in joined:
            yield tuple(range(*span))


def _questions_with_answers(view: View) -> Iterator[tuple[int, int]]:
    """Yields (user message, last round of its turn) by their first items. The task belongs to all that follows it."""
    for turn in view.structure.turns:
        if turn.user is not None and turn.user != view.task and turn.rounds:
            yield turn.user, turn.rounds[-1].start
