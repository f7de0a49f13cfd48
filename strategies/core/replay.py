"""Replay: which of a session's condensations a transcript's view applies.

What the last view of this branch applied is applied again: so a view only grows at its end, and upstream prompt
caches keep hitting. Where that is not known, or no longer fits under the trigger, the longest covered prefix that
stands is taken, then the greatest depth. A condensation that would hide what this transcript must show (its newest
round, its last user message: after a rewind they may lie inside an old head) is passed over. One made for a smaller
window gives way to the longest view that fits under this window's trigger.
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
    last: str | None = None,
) -> Replayed:
    """The view of a transcript; `fixed` are the tokens of tools and framing.

    `last` is the id of the condensation that the branch's last view applied, "" for none, None where the branch
    is not known.
    """
    found = list(standing_in(condensations, transcript.digests))
    resting = None if last is None else _resting(transcript, found, fixed, counter, last)
    if budget is None:
        return resting or next(_views(transcript, found, fixed, counter))
    if resting is not None and resting.view.tokens < budget.trigger and _is_for(resting, budget):
        return resting
    views = _views(transcript, found, fixed, counter)
    best = next(views)
    if _is_for(best, budget):
        return best
    fitting = [each for each in (best, *views) if each.view.tokens < budget.trigger]
    return max(fitting, key=lambda each: each.view.tokens, default=best)


def _is_for(replayed: Replayed, budget: Budget) -> bool:
    """Whether it was made for this window or a larger one; a bare transcript is for any."""
    return replayed.applied is None or replayed.applied.window >= budget.made_for


def _resting(
    transcript: Transcript, found: Iterable[Condensation], fixed: int, counter: Counter, last: str
) -> Replayed | None:
    """The view as it was last time; None where what it applied does not stand any more."""
    if not last:
        return Replayed(fold(transcript, (), fixed, counter), None)
    again = [each for each in found if each.id == last]
    return next((each for each in _views(transcript, again, fixed, counter) if each.applied is not None), None)


def _views(
    transcript: Transcript, condensations: Iterable[Condensation], fixed: int, counter: Counter
) -> Iterator[Replayed]:
    """The views that stand, best first, made as they are asked for; the transcript itself is the last."""
    for each in standing_in(condensations, transcript.digests):
        view = fold(transcript, (each.overlay,), fixed, counter)
        if shows_what_it_must(view):
            yield Replayed(view, each)
    yield Replayed(fold(transcript, (), fixed, counter), None)


def shows_what_it_must(view: View) -> bool:
    """Whether the newest round and the last user message of its transcript stand in a view."""
    try:
        check(view, newest_results_too=True)
    except InvalidPlan:
        return False
    return True
