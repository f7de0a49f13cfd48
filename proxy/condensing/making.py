"""Makes a condensation, once for all requests that want the same one, and returns the stored record.

    single flight          requests that want the same condensation share one task while a model may be asked
    unless recorded        the store is asked whether the record has appeared since the request was recognised
    run and record         the pipeline runs, and the record is stored

A flight ends when its record is stored, so a request that comes too late for the flight finds the record instead of
asking again. Flights save model calls and decide nothing: replicas may make the same condensation at the same time, and
the first writer of a record wins.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import NamedTuple

from proxy.asking import Caller
from proxy.condensing.running import PipelineRunner, Run, RunResult
from proxy.condensing.turn import Decision, RequestContext
from proxy.reasons import Trigger
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.keeping import Keeper
from proxy.store.base import StoreError
from strategies.core.cards import MemoryCard
from strategies.core.condensation import (
    JUDGED,
    Condensation,
    Replayed,
    shows_protected_messages,
    standing_condensations,
)
from strategies.core.plan import head_pieces
from strategies.core.protocol import Judging, Verdict
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import fold

TRIGGERS = {
    # A prepared condensation is applied when the trigger is reached.
    Requirement.PREPARE: Trigger.THRESHOLD,
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}

_log = logging.getLogger(__name__)


class Job(NamedTuple):
    """A condensation that a request needs now."""

    requirement: Requirement
    decision: Decision
    until: float
    """When the request stops waiting for models: a time of the event loop's clock."""

    @property
    def shared_id(self) -> str:
        """The id of this work, which is the same in all processes of one version."""
        context = self.decision.context
        chain = context.history.digests
        return context.shared_work_id(
            self.requirement.value, chain[-1] if chain else b"", self.decision.base.applied_id
        )


@dataclass(slots=True, eq=False)
class Maker:
    _runner: PipelineRunner
    _keeper: Keeper
    _tasks: OwnedTasks
    _clock: Callable[[], float]

    async def project(self, requirement: Requirement, decision: Decision) -> RunResult:
        """Plans the condensation with placeholder texts; calls no model, records nothing."""
        run = self._run_for(requirement, decision.base, decision.context)
        return self._with_condensation(run, await self._runner.project(run))

    async def prepare(
        self, base: Replayed, context: RequestContext, caller: Caller, verdict: Verdict | None = None
    ) -> RunResult:
        """Makes a condensation for a later request, and records it as prepared, not applied; this may take minutes.

        With a `verdict` of judges, the condensation follows that.
        """
        run = self._run_for(Requirement.PREPARE, base, context, verdict)
        result = self._with_condensation(run, await self._runner.run(run, caller))
        if result.condensation is None or verdict is None:
            return await self._record(result, context, standing=False)
        judged = replace(result.condensation, trigger=JUDGED)
        kept = await self._record(result._replace(condensation=judged), context, standing=False)
        if kept.condensation is not None and kept.condensation.trigger != JUDGED:
            # The same messages were prepared for a mark already, but only a judged record is applied before that mark.
            kept = await self._record(result._replace(condensation=_one_level_deeper(judged)), context, standing=False)
        return kept

    async def make(self, requirement: Requirement, decision: Decision, until: float) -> RunResult:
        """The condensation that a requirement calls for, recorded if the request may be stored.

        Models are waited for until `until`, a time of the event loop's clock.
        """
        job, context = Job(requirement, decision, until), decision.context
        if not (context.may_store and RULES[requirement].asks):
            return await self._run_and_record(job)
        clock = asyncio.get_running_loop().time
        began = clock()
        result, is_leader = await self._tasks.share(
            job.shared_id,
            self._single_flight(job),
            lambda made: made.condensation is not None and not made.store_failure,
        )
        if is_leader:
            return result
        context.recognised.patience.spend(min(result.store_seconds, clock() - began))
        # A request that joined the flight records the result too: its session may be another one, or the store may have
        # lost the record since.
        return await self._record(result._replace(own_tokens=0), context)

    async def _single_flight(self, job: Job) -> RunResult:
        """Makes the condensation for all requests that share this flight.

        The result says how long the flight waited for the store, because each of these requests has waited as long.
        """
        patience = job.decision.context.recognised.patience
        before = patience.remaining
        result = await self._unless_recorded(job)
        return result._replace(store_seconds=before - patience.remaining)

    async def _unless_recorded(self, job: Job) -> RunResult:
        context, applied = job.decision.context, job.decision.applied
        since = await self._keeper.recorded_since(context.recognised)
        recorded = next(iter(standing_condensations(since, context.history.digests)), None)
        # It may be the prepared record that this request has just made standing, and that was not enough.
        is_applied = recorded is not None and applied is not None and recorded.id == applied.id
        if recorded is not None and not is_applied and _shows_required(recorded, context):
            return RunResult(condensation=recorded)
        return await self._run_and_record(job)

    async def _run_and_record(self, job: Job) -> RunResult:
        requirement, decision, until = job
        context = decision.context
        run = self._run_for(requirement, decision.base, context)
        run_result = await self._runner.run_until(until, run, context.caller(self._tasks, background=False))
        if run_result.late is not None and not context.may_store:
            run_result.late.cancel()
        elif run_result.late is not None:
            late = self._record_late(run_result.late, run, context.with_fresh_patience())
            self._tasks.start(late, context.branch_work_key, always=True)
        return await self._record(self._with_condensation(run, run_result), context)

    async def _record_late(
        self, working: asyncio.Task[RunResult], run: Run, context: RequestContext
    ) -> Condensation | None:
        """Records what models wrote too late for the request that waited, one step deeper than what replaced it."""
        late = await working
        asking = {stage.name for stage in run.policy.stages if stage.asks}
        result = self._with_condensation(run._replace(requirement=Requirement.PREPARE), late)
        if late.outcome is None or result.condensation is None or asking.isdisjoint(late.outcome.stages):
            return None
        result = result._replace(condensation=_one_level_deeper(result.condensation))
        kept = await self._record(result, context, standing=False)
        await self._keeper.amend(context.recognised, lambda session: session.with_totals(own_tokens=late.own_tokens))
        return kept.condensation

    async def _record(self, result: RunResult, context: RequestContext, *, standing: bool = True) -> RunResult:
        """Records a condensation, and returns the record that counts: ours, or that of the first writer.

        A standing record that was made for a longer transcript may hide what this view must show: then ours is
        recorded one step deeper.
        """
        ours = result.condensation
        if ours is None or not context.may_store:
            return result
        try:
            kept = await self._keeper.record(context.recognised, ours, standing=standing)
            while standing and kept.pieces != ours.pieces and not _shows_required(kept, context):
                ours = _one_level_deeper(ours)
                kept = await self._keeper.record(context.recognised, ours, standing=True)
        except StoreError as error:
            return result._replace(store_failure=error.reason)
        return result._replace(condensation=kept)

    def extend_judged(self, prepared: Replayed, judging: Judging | None) -> Condensation | None:
        """A judged record, extended over later messages that its strategy drops; None if there are none."""
        judged = prepared.applied
        if judging is None or judged is None or judged.trigger != JUDGED:
            return None
        shortened = judging.shortened(prepared.view, judged.metadata)
        if shortened is None:
            return None
        view = shortened.view
        return replace(
            judged,
            id=_new_id(),
            digest=view.transcript.digests[view.covered_count - 1],
            covered=view.covered_count,
            pieces=head_pieces(view),
            tokens_after=view.tokens,
            metadata={**judged.metadata, **shortened.metadata},
        )

    def _run_for(
        self, requirement: Requirement, base: Replayed, context: RequestContext, verdict: Verdict | None = None
    ) -> Run:
        facts = context.session_facts(self._clock(), verdict)
        return Run(requirement, base, context.policy, context.own_budget, facts, perf_counter())

    def _with_condensation(self, run: Run, result: RunResult) -> RunResult:
        if result.outcome is None:
            return result
        outcome, base, policy, view = result.outcome, run.base, run.policy, result.outcome.view
        name, now = _new_id(), self._clock()
        # Under a strategy that judges, what was prepared for a mark waits for the hard limit.
        waits = run.requirement is Requirement.PREPARE and policy.judging is not None
        record = Condensation(
            id=name,
            digest=view.transcript.digests[view.covered_count - 1],
            covered=view.covered_count,
            depth=base.applied.depth + 1 if base.applied else 1,
            pieces=head_pieces(view),
            window=policy.budget.window if policy.budget else 0,
            strategy=policy.pipeline.text,
            requirement=run.requirement.value,
            trigger=(Trigger.CONTEXT_LIMIT if waits else TRIGGERS[run.requirement]).value,
            tokens_before=base.view.tokens,
            tokens_after=view.tokens,
            created_at=now,
            cards=_cards_of(name, outcome.cards, now),
            own_tokens=result.own_tokens,
            parent=base.applied.id if base.applied else None,
            metadata={
                "stages": outcome.stages,
                "reasons": outcome.reasons,
                "compressionDuration": round((perf_counter() - run.started) * 1000, 1),
                **outcome.metadata,
            },
        )
        return result._replace(condensation=record)


def _new_id() -> str:
    """A random id for a condensation; records are found by chain and depth, not by this id."""
    return "c" + secrets.token_hex(8)


def _cards_of(condensation: str, cards: Iterable[MemoryCard], now: float) -> tuple[MemoryCard, ...]:
    """Memory cards as they are recorded with a condensation at `now`."""
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return tuple(replace(card, condensation=condensation, created_at=card.created_at or at) for card in cards)


def _one_level_deeper(condensation: Condensation) -> Condensation:
    """The same record one step deeper, with a new id."""
    name = _new_id()
    cards = tuple(replace(card, condensation=name) for card in condensation.cards)
    return replace(condensation, depth=condensation.depth + 1, id=name, cards=cards)


def _shows_required(condensation: Condensation, context: RequestContext) -> bool:
    """Whether this request's view shows all that it must show with a condensation."""
    return shows_protected_messages(fold(context.history, (condensation.overlay,), context.overhead, context.counter))
