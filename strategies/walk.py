"""The walk: computes the view of a transcript for which nothing is stored.

Without a store, every replica must derive the same view from the transcript alone. So the walk repeats the requests
that led to it: at each place where the client must have sent a request, it measures the view so far, and if that view
required a condensation, the stages that ask no model make one. The cut stays the same from request to request until
the next trigger. Token sums are carried along, so that a walk costs one pass, and one plan for each condensation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from strategies.core.budget import Budget
from strategies.core.errors import StrategyError
from strategies.core.messages import Counter, Role
from strategies.core.pieces import Overlay
from strategies.core.plan import head_pieces
from strategies.core.protocol import Past, Strategy
from strategies.core.requirement import Requirement, requirement_for
from strategies.core.transcript import Transcript
from strategies.core.view import View, fold
from strategies.pipeline import Outcome, Run, attempt


def walk(
    transcript: Transcript,
    stages: Sequence[Strategy],
    ladder: Sequence[Strategy],
    budget: Budget,
    fixed: int,
    counter: Counter,
) -> View:
    """The view after all condensations that the stages without a model would have made for the earlier requests."""
    allowed = [stage for stage in stages if not stage.asks]
    head: tuple[Overlay, ...] = ()
    since: int | None = None
    sizes, more = _sizes(transcript), fixed
    for end in _request_ends(transcript):
        requirement = requirement_for(sizes[end] + more, budget, since=since)
        if requirement is None:
            continue
        view = fold(_prefix(transcript, end), head, fixed, counter)
        after = _condense(requirement, allowed, ladder, view, budget)
        if after is not None:
            head = (Overlay(transcript.digests[after.covered - 1], after.covered, after.covered, head_pieces(after)),)
            since, more = after.tokens, after.tokens - sizes[end]
        else:
            # A view that cannot be condensed now cannot be a turn later either: it has to grow by a step first.
            since = sizes[end] + more
    return fold(transcript, head, fixed, counter)


def _request_ends(transcript: Transcript) -> Iterator[int]:
    """Yields the lengths of the prefixes that the client must have sent: one before each reply, and the whole chain."""
    chain = transcript.chain
    for i in range(1, len(chain)):
        if chain[i].role is Role.ASSISTANT and chain[i - 1].role is not Role.ASSISTANT:
            yield i
    if chain:
        yield len(chain)


def _prefix(transcript: Transcript, end: int) -> Transcript:
    systems = tuple((place, message) for place, message in transcript.systems if place <= end)
    return Transcript(transcript.chain[:end], systems)


def _sizes(transcript: Transcript) -> list[int]:
    """Tokens of every prefix with the system messages up to its end: later ones must not change an earlier cut."""
    own = [0, *(message.tokens for message in transcript.chain)]
    for place, message in transcript.systems:
        own[place] += message.tokens
    return list(accumulate(own))


def _condense(
    requirement: Requirement, stages: Sequence[Strategy], ladder: Sequence[Strategy], view: View, budget: Budget
) -> View | None:
    try:
        return finish_without_effects(attempt(requirement, stages, ladder, view, budget, Past())).view
    except StrategyError:
        return None


def finish_without_effects(running: Run) -> Outcome:
    """The outcome of a run in which no stage asks a model; raises `RuntimeError` if one does."""
    try:
        next(running)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    raise RuntimeError("a stage that declares to ask no model has asked")
