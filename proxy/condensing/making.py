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
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from proxy.condensing.running import PipelineRunner, Run, RunResult, new_id
from proxy.condensing.turn import Decision, RequestContext
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.keeping import Keeper
from proxy.store.base import StoreError
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


@dataclass(slots=True, eq=False)
class Maker:
    _runner: PipelineRunner
    _keeper: Keeper
    _tasks: OwnedTasks
    _clock: Callable[[], float]

    async def prepare(self, decision: Decision, verdict: Verdict | None = None, *, background: bool) -> RunResult:
        """Makes a condensation for a later request, and records it as prepared, not applied; this may take minutes.

        With a `verdict` of judges, the condensation follows that.
        """
        context = decision.context
        run = self._run_for(Requirement.PREPARE, decision, verdict)
        result = await self._runner.run(run, context.caller(self._tasks, background=background))
        if result.condensation is None or verdict is None:
            return await self._record(result, context, standing=False)
        judged = replace(result.condensation, trigger=JUDGED)
        kept = await self._record(result._replace(condensation=judged), context, standing=False)
        if kept.condensation is not None and kept.condensation.trigger != JUDGED:
            # The same messages were prepared for a mark already, but only a judged record is applied before that mark.
            kept = await self._record(result._replace(condensation=_one_level_deeper(judged)), context, standing=False)
        return kept

    async def make(self, requirement: Requirement, decision: Decision, until: float) -> RunResult:
        """The condensation that a requirement calls for, recorded if the request may be stored, or a projected one.

        Models are waited for until `until`, a time of the event loop's clock.
        """
        context, run = decision.context, self._run_for(requirement, decision)
        if context.is_projected:
            return await self._runner.project(run)
        if not (context.may_store and RULES[requirement].asks):
            return await self._run_and_record(run, context, until)
        clock = asyncio.get_running_loop().time
        began = clock()
        head = context.history.digests[-1] if context.history.chain else b""
        result, is_leader = await self._tasks.share(
            context.shared_work_id(requirement.value, head, run.base.applied_id),
            self._unless_recorded(run, context, until),
            lambda made: made.condensation is not None and not made.store_failure,
        )
        if is_leader:
            return result
        context.recognised.patience.spend(min(result.store_seconds, clock() - began))
        # A request that joined the flight records the result too: its session may be another one, or the store may have
        # lost the record since.
        return await self._record(result._replace(own_tokens=0), context)

    async def _unless_recorded(self, run: Run, context: RequestContext, until: float) -> RunResult:
        """Makes the condensation for all requests that share this flight.

        The result says how long the flight waited for the store, because each of these requests has waited as long.
        """
        patience = context.recognised.patience
        before = patience.remaining
        since = await self._keeper.recorded_since(context.recognised)
        recorded = next(iter(standing_condensations(since, context.history.digests)), None)
        # It may be the prepared record that this request has just made standing, and that was not enough.
        is_new = recorded is not None and recorded.id != run.base.applied_id
        if recorded is not None and is_new and _shows_required(recorded, context):
            result = RunResult(recorded)
        else:
            result = await self._run_and_record(run, context, until)
        return result._replace(store_seconds=before - patience.remaining)

    async def _run_and_record(self, run: Run, context: RequestContext, until: float) -> RunResult:
        result = await self._runner.run_until(until, run, context.caller(self._tasks, background=False))
        if result.late is not None and not context.may_store:
            result.late.cancel()
        elif result.late is not None:
            late = self._record_late(result.late, run, context.with_fresh_patience())
            self._tasks.start(late, context.branch_work_key, always=True)
        return await self._record(result, context)

    async def _record_late(
        self, working: asyncio.Task[RunResult], run: Run, context: RequestContext
    ) -> Condensation | None:
        """Records what models wrote too late for the request that waited, one step deeper than what replaced it."""
        late = await working
        asking = {stage.name for stage in run.policy.stages if stage.asks}
        if late.condensation is None or asking.isdisjoint(late.condensation.metadata["stages"]):
            return None
        prepared = run._replace(requirement=Requirement.PREPARE)
        ours = replace(late.condensation, requirement=prepared.requirement.value, trigger=prepared.trigger.value)
        kept = await self._record(late._replace(condensation=_one_level_deeper(ours)), context, standing=False)
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
            id=new_id(),
            digest=view.transcript.digests[view.covered_count - 1],
            covered=view.covered_count,
            pieces=head_pieces(view),
            tokens_after=view.tokens,
            metadata={**judged.metadata, **shortened.metadata},
        )

    def _run_for(self, requirement: Requirement, decision: Decision, verdict: Verdict | None = None) -> Run:
        context, facts = decision.context, decision.context.session_facts(self._clock(), verdict)
        return Run(requirement, decision.base, context.policy, context.own_budget, facts, perf_counter())


def _one_level_deeper(condensation: Condensation) -> Condensation:
    """The same record one step deeper, with a new id."""
    name = new_id()
    cards = tuple(replace(card, condensation=name) for card in condensation.cards)
    return replace(condensation, depth=condensation.depth + 1, id=name, cards=cards)


def _shows_required(condensation: Condensation, context: RequestContext) -> bool:
    """Whether this request's view shows all that it must show with a condensation."""
    return shows_protected_messages(fold(context.history, (condensation.overlay,), context.overhead, context.counter))
