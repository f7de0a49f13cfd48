"""Ready: which prepared condensation a view may take now.

A prepared one was made in the background for an earlier transcript of this chain, and no forwarded view has applied it
yet. It is taken when it covers more than what the view rests on, was made for this window or a larger one, leaves
standing what this transcript must show, and makes the view smaller by the share that the requirement wants. One that a
judge asked for was held to its share when it was made: what has come since, and stands behind it word for word, must
not take from it what was paid for. It need only make the view smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, standing_in
from strategies.core.replay import Replayed, shows_what_it_must
from strategies.core.view import View, fold

JUDGED = "judge"


def prepared_in(
    condensations: Iterable[Condensation], digests: Sequence[bytes], applied: Condensation | None
) -> list[Condensation]:
    """Prepared ones whose covered prefix stands and that reach further than `applied`, best first."""
    waiting = [replace(each, standing=True) for each in condensations if not each.standing]
    reached = (applied.covered, applied.depth) if applied else (0, 0)
    return [each for each in standing_in(waiting, digests) if (each.covered, each.depth) > reached]


def ready(
    view: View,
    applied: Condensation | None,
    condensations: Iterable[Condensation],
    budget: Budget,
    *,
    judged_only: bool = False,
    least_shrink: float = 0.0,
) -> Replayed | None:
    """The best prepared condensation that `view`, which rests on `applied`, may take, with the view that it makes.

    `judged_only` leaves out those that no judge asked for; `least_shrink` is a share of the view, for the others.
    """
    for made, after in _candidates(view, applied, condensations, budget, judged_only=judged_only):
        saved, share = view.tokens - after.tokens, 0.0 if made.trigger == JUDGED else least_shrink
        if saved > 0 and saved >= share * view.tokens and shows_what_it_must(after):
            return Replayed(after, made)
    return None


def _candidates(
    view: View,
    applied: Condensation | None,
    condensations: Iterable[Condensation],
    budget: Budget,
    *,
    judged_only: bool,
) -> Iterator[tuple[Condensation, View]]:
    overhead = view.fixed - view.transcript.system_tokens
    for made in prepared_in(condensations, view.transcript.digests, applied):
        if made.window >= budget.made_for and (made.trigger == JUDGED or not judged_only):
            yield made, fold(view.transcript, (made.overlay,), overhead, view.counter)
