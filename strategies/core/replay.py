"""Replay: chooses which of a session's condensations the view of a transcript applies.

The condensation that the last view of this branch applied is applied again, so that the view only grows at its end and
upstream prompt caches keep hitting. If that one is unknown, or its view no longer fits under the trigger, the
condensation with the longest covered prefix is chosen, and of several the one with the greatest depth. A condensation
that would hide a protected message (the newest round, or the last user message; after a rewind they may lie inside an
old head) is skipped. If the choice was made for a smaller window, the longest view under this window's trigger is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, standing_in
from strategies.core.errors import InvalidPlan
from strategies.core.messages import Counter
from strategies.core.plan import check
from strategies.core.transcript import Transcript
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

    `last` is the id of the condensation that the branch's last view applied, "" if it applied none, and None if the
    branch is unknown.
    """
    candidates = list(standing_in(condensations, transcript.digests))
    again = None if last is None else _as_last_time(transcript, candidates, fixed, counter, last)
    if budget is None:
        return again or next(_views(transcript, candidates, fixed, counter))
    if again is not None and again.view.tokens < budget.trigger and _suits_window(again, budget):
        return again
    views = _views(transcript, candidates, fixed, counter)
    best = next(views)
    if _suits_window(best, budget):
        return best
    fitting = [each for each in (best, *views) if each.view.tokens < budget.trigger]
    return max(fitting, key=lambda each: each.view.tokens, default=best)


def _suits_window(replayed: Replayed, budget: Budget) -> bool:
    """Whether the condensation was made for this window or a larger one; the bare transcript suits any window."""
    return replayed.applied is None or replayed.applied.window >= budget.nominal_window


def _as_last_time(
    transcript: Transcript, candidates: Iterable[Condensation], fixed: int, counter: Counter, last: str
) -> Replayed | None:
    """The view with the condensation of the last view; None if that one does not apply any more."""
    if not last:
        return Replayed(fold(transcript, (), fixed, counter), None)
    same = [each for each in candidates if each.id == last]
    return next((each for each in _views(transcript, same, fixed, counter) if each.applied is not None), None)


def _views(
    transcript: Transcript, condensations: Iterable[Condensation], fixed: int, counter: Counter
) -> Iterator[Replayed]:
    """Yields the possible views, best first; the last one is the transcript itself, with nothing applied."""
    for each in standing_in(condensations, transcript.digests):
        view = fold(transcript, (each.overlay,), fixed, counter)
        if shows_protected_messages(view):
            yield Replayed(view, each)
    yield Replayed(fold(transcript, (), fixed, counter), None)


def shows_protected_messages(view: View) -> bool:
    """Whether a view passes `check`, so that the newest round and the last user message are in it."""
    try:
        check(view, may_cut_newest_results=True)
    except InvalidPlan:
        return False
    return True
