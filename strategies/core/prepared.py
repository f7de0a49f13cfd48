"""Prepared condensations: chooses the one that a view may apply now.

A prepared condensation was made in the background for an earlier transcript of this chain, and no forwarded view has
applied it yet. A view may apply it if it covers more than the condensation that the view already applies, was made for
this window or a larger one, shows all protected messages of this transcript, and shrinks the view by the share that the
requirement wants. One that a judge asked for need only make the view smaller: it was held to its share when it was
made, and messages that have come since, which follow it word for word, must not waste what was paid for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from strategies.core.budget import Budget
from strategies.core.condensation import Condensation, standing_in
from strategies.core.replay import Replayed, shows_protected_messages
from strategies.core.view import View, fold

JUDGED = "judge"


def prepared_in(
    condensations: Iterable[Condensation], digests: Sequence[bytes], applied: Condensation | None
) -> list[Condensation]:
    """The prepared condensations that apply to this chain and reach further than `applied`, best first."""
    prepared = [replace(each, standing=True) for each in condensations if not each.standing]
    reached = (applied.covered, applied.depth) if applied else (0, 0)
    return [each for each in standing_in(prepared, digests) if (each.covered, each.depth) > reached]


def best_prepared(
    view: View,
    applied: Condensation | None,
    condensations: Iterable[Condensation],
    budget: Budget,
    *,
    judged_only: bool = False,
    least_shrink: float = 0.0,
) -> Replayed | None:
    """The best prepared condensation for `view`, which applies `applied` so far, and the view with it; None if none.

    `judged_only` considers only condensations that a judge asked for. All others must shrink the view by the share
    `least_shrink`.
    """
    for condensation, after in _candidates(view, applied, condensations, budget, judged_only=judged_only):
        saved, share = view.tokens - after.tokens, 0.0 if condensation.trigger == JUDGED else least_shrink
        if saved > 0 and saved >= share * view.tokens and shows_protected_messages(after):
            return Replayed(after, condensation)
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
    for condensation in prepared_in(condensations, view.transcript.digests, applied):
        if condensation.window >= budget.nominal_window and (condensation.trigger == JUDGED or not judged_only):
            yield condensation, fold(view.transcript, (condensation.overlay,), overhead, view.counter)
