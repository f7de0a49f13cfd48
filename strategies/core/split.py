"""Splits: finds the place where a condensed prefix ends.

`Split` knows, for every item index, how many tokens a view would have if everything before it became the task and a
replacement of a given size. Suffix sums answer in constant time, so that a search over all cuts is linear.

Turn boundaries are preferred. If none meets the goal, round boundaries are used: an agent with one user message has no
other. No cut is after the view's limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from strategies.core.view import View


class Split:
    """The places to cut a view, and the size of the view after each, for a replacement of `size` tokens.

    A first user message is assumed to be cut to `task_cap`, unless it is kept whole.
    """

    def __init__(self, view: View, size: int, task_cap: int) -> None:
        self._view = view
        self._size = size
        tokens = [item.message.tokens for item in view.items]
        self._behind = list(accumulate(reversed(tokens), initial=0))[::-1]
        self._task = 0
        if view.task is not None:
            self._task = tokens[view.task] if view.transcript.keeps_task_whole else min(tokens[view.task], task_cap)
        self._stays = [(i, tokens[i]) for i in view.stays if i != view.task]

    def tokens_after(self, end: int) -> int:
        """Tokens of the view if everything before `end` were condensed."""
        view = self._view
        task = 0 if view.task is None or view.task >= end else self._task
        stays = sum(tokens for i, tokens in self._stays if i < end)
        return view.fixed + task + self._size + stays + self._behind[end]

    def is_legal(self, place: int) -> bool:
        """Whether a condensation may end at `place`: no later than the view's limit, all calls with their results."""
        return place <= self._view.limit and self._view.structure.cuts[place]

    def turn_cuts(self) -> list[int]:
        """The legal cuts at the starts of turns, and of the rounds of the last turn, which may still go on."""
        turns = self._view.structure.turns
        starts = [turn.start for turn in turns]
        active = [each.start for each in turns[-1].rounds] if turns else []
        return self._legal(sorted({*starts, *active}))

    def round_cuts(self) -> list[int]:
        """The legal cuts at the starts of all turns and rounds."""
        turns = self._view.structure.turns
        starts = {turn.start for turn in turns} | {each.start for turn in turns for each in turn.rounds}
        return self._legal(sorted(starts))

    def _legal(self, places: Sequence[int]) -> list[int]:
        """The legal cuts among `places` that condense at least one message more than an earlier replacement."""
        view = self._view
        least = 1 if view.replacement is None else view.replacement + 2
        return [place for place in places if least <= place <= view.limit and view.structure.cuts[place]]

    def first_at_turn(self, goal: int, start: int = 0) -> int | None:
        """The first cut from `start` on that meets the goal, preferably at a turn; else the last cut; None if none."""
        cut = self._within(self.turn_cuts(), goal, start)
        return self.first_at_round(goal, start) if cut is None else cut

    def first_at_round(self, goal: int, start: int = 0) -> int | None:
        """The first cut from `start` on that meets the goal; else the last cut; None if there is none."""
        places = self.round_cuts()
        cut = self._within(places, goal, start)
        if cut is not None:
            return cut
        return places[-1] if places and places[-1] >= start else None

    def _within(self, places: Sequence[int], goal: int, start: int) -> int | None:
        later = places[bisect_left(places, start) :]
        return next((place for place in later if self.tokens_after(place) <= goal), None)
