"""Replay: which of a session's condensations a transcript's view applies.

The longest covered prefix that stands, then the greatest depth. A condensation that would hide what this transcript
must show (its newest round, its last user message: after a rewind they may lie inside an old head) is passed over.
One made for a smaller window gives way to the longest view that fits under this window's trigger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, standing_in
from strategies.core.errors import InvalidPlan
from strategies.core.plan import check
from strategies.core.transcript import Counter, Transcript
from strategies.core.view import View, fold


class Replayed(NamedTuple):
    """A view and the condensation that is its head, if any."""

    view: View
    applied: Condensation | None


def replay(
    transcript: Transcript,
    condensations: Iterable[Condensation],
    fixed: int,
    counter: Counter,
    budget: Budget | None,
) -> Replayed:
    """The view of a transcript; `fixed` are the tokens of tools and framing."""
    found = _views(transcript, condensations, fixed, counter)
    best = next(found)
    if budget is None or best.applied is None or best.applied.window >= budget.window:
        return best
    fitting = [each for each in (best, *found) if each.view.tokens < budget.trigger]
    return max(fitting, key=lambda each: each.view.tokens, default=best)


def _views(
    transcript: Transcript, condensations: Iterable[Condensation], fixed: int, counter: Counter
) -> Iterator[Replayed]:
    """The views that stand, best first, made as they are asked for; the transcript itself is the last."""
    for each in standing_in(condensations, transcript.digests):
        view = fold(transcript, (each.overlay,), fixed, counter)
        if _shows_what_it_must(view):
            yield Replayed(view, each)
    yield Replayed(fold(transcript, (), fixed, counter), None)


def _shows_what_it_must(view: View) -> bool:
    try:
        check(view, newest_results_too=True)
    except InvalidPlan:
        return False
    return True
