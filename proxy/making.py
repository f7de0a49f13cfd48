"""Making a condensation: once for all who want the same one, and what the store holds of it is what counts.

Requests at one chain share a flight while a model may be asked. A flight begins by looking whether the store has got
what is wanted since the request was recognised, and ends when its record is kept: so a request that comes too late for
a flight finds its record instead of asking again. The first writer of a record wins, also across replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from proxy.attempts import Attempts
from proxy.decision import Decision, Trigger
from proxy.flights import Flights
from proxy.intake import Case, milliseconds
from proxy.keeping import Keeper
from proxy.store.base import StoreError
from proxy.summarizer import Caller
from strategies.core.condensation import Condensation
from strategies.core.plan import head_pieces
from strategies.core.protocol import Past
from strategies.core.replay import shows_what_it_must
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import fold
from strategies.pipeline import Outcome

TRIGGERS = {
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}


class Made(NamedTuple):
    """A condensation, or the reason why there is none; `failure` where the store did not take it.

    `own_tokens` are those of our model calls for this request, `asked` whether any text is a model's.
    """

    condensation: Condensation | None
    reason: str = ""
    own_tokens: int = 0
    asked: bool = False
    failure: str = ""


class Maker:
    """Makes condensations; one per app."""

    def __init__(self, attempts: Attempts, keeper: Keeper, clock: Callable[[], float]) -> None:
        self._attempts = attempts
        self._keeper = keeper
        self._clock = clock
        self._flights: Flights[Made] = Flights(lambda made: made.condensation is not None and not made.failure)

    async def project(self, requirement: Requirement, decision: Decision, case: Case) -> Made:
        """What would be made, with texts of the size that a model's may have; nothing is asked or kept."""
        return await self._attempt(requirement, decision, case, None)

    async def make(self, requirement: Requirement, decision: Decision, case: Case) -> Made:
        """What the requirement leads to, recorded where anything of the request may be."""
        if not (case.keeps and RULES[requirement].asks):
            return await self._work(requirement, decision, case)
        made, led = await self._flights.join(
            _flight(requirement, decision, case), self._first_looked_up(requirement, decision, case)
        )
        # Who came along keeps it too: under a key of its own, or in a store that has lost it since.
        return made if led else await self._kept(made._replace(own_tokens=0), case)

    async def _first_looked_up(self, requirement: Requirement, decision: Decision, case: Case) -> Made:
        ready = await self._keeper.made_since(case.found, case.history.digests)
        if ready is not None and _shows(ready, case):
            return Made(ready)
        return await self._work(requirement, decision, case)

    async def _work(self, requirement: Requirement, decision: Decision, case: Case) -> Made:
        caller = Caller(case.request.model, case.request.headers)
        return await self._kept(await self._attempt(requirement, decision, case, caller), case)

    async def _kept(self, made: Made, case: Case) -> Made:
        """What the store holds of a condensation, ours or another writer's."""
        if made.condensation is None or not case.keeps:
            return made
        try:
            return made._replace(condensation=await self._recorded(made.condensation, case))
        except StoreError as error:
            return made._replace(failure=error.reason)

    async def _recorded(self, ours: Condensation, case: Case) -> Condensation:
        """The record that counts. A winner made for a longer transcript may hide what this one must show: then ours
        is recorded a step deeper."""
        kept = await self._keeper.keep(case.found, ours)
        while kept.pieces != ours.pieces and not _shows(kept, case):
            ours = replace(ours, depth=ours.depth + 1, id=_id(ours.digest, ours.depth + 1))
            kept = await self._keeper.keep(case.found, ours)
        return kept

    async def _attempt(self, requirement: Requirement, decision: Decision, case: Case, caller: Caller | None) -> Made:
        past = Past(self._clock(), case.found.condensations)
        started = perf_counter()
        attempted = await self._attempts.attempt(requirement, decision.view, case.policy, past, caller)
        spent = milliseconds(started)
        made = Made(None, attempted.reason, attempted.own_tokens, attempted.asked)
        if attempted.outcome is not None:
            record = self._condensation(requirement, decision, attempted.outcome, attempted.own_tokens, spent)
            made = made._replace(condensation=record)
        return made

    def _condensation(
        self, requirement: Requirement, decision: Decision, outcome: Outcome, own_tokens: int, spent: float
    ) -> Condensation:
        view, budget = outcome.view, decision.policy.budget
        digest = view.transcript.digests[view.covered - 1]
        depth = decision.depth + 1
        return Condensation(
            id=_id(digest, depth),
            digest=digest,
            covered=view.covered,
            depth=depth,
            pieces=head_pieces(view),
            window=budget.window if budget else 0,
            strategy=str(decision.policy.pipeline),
            requirement=requirement.value,
            trigger=TRIGGERS[requirement].value,
            tokens_before=decision.tokens_after,
            tokens_after=view.tokens,
            created_at=self._clock(),
            own_tokens=own_tokens,
            parent=decision.applied.id if decision.applied else None,
            metadata={
                "stages": outcome.stages,
                "reasons": outcome.reasons,
                "compressionDuration": round(spent, 1),
                **outcome.metadata,
            },
        )


def _id(digest: bytes, depth: int) -> str:
    return f"c{digest.hex()[:12]}-{depth}"


def _shows(condensation: Condensation, case: Case) -> bool:
    """Whether a condensation leaves in this request's view what must stand there."""
    return shows_what_it_must(fold(case.history, (condensation.overlay,), case.measured.overhead, case.counter))


def _flight(requirement: Requirement, decision: Decision, case: Case) -> Hashable:
    """What makes two condensations the same work: the same chain, from the same view, to the same end."""
    chain, policy = case.history.digests, case.policy
    applied = decision.applied.id if decision.applied else ""
    options = tuple(str(getattr(stage, "options", "")) for stage in policy.stages)
    whose = (case.request.tenant, case.found.identity, case.request.model)
    return (*whose, chain[-1] if chain else b"", applied, requirement, policy.pipeline, options, policy.budget)
