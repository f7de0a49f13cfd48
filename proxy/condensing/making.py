"""Makes a condensation, once for all requests that want the same one, and returns the record that the store holds of
it.

    single flight          requests at one chain share one task while a model may be asked
    under a lease          replicas share one lease where a model can be asked: its holder does the work and hands over
                           the record to the others
    unless recorded        the store is asked whether the record has appeared since the request was recognised
    run and record         the pipeline runs, and the record is kept

A flight ends when its record is kept, so a request that comes too late for the flight finds the record instead of
asking again. Flights and leases save model calls and decide nothing: the first writer of a record wins, with a lease or
without.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

from proxy.asking import Caller
from proxy.condensing.context import RequestContext
from proxy.condensing.decision import Decision
from proxy.condensing.leases import Leases
from proxy.condensing.policy import Policy
from proxy.condensing.running import PipelineRunner, RunResult
from proxy.reasons import Trigger
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.codec import UNREADABLE, decode_condensation, encode_condensation
from proxy.sessions.keeping import Keeper
from proxy.store.access import compress, decompress
from proxy.store.base import StoreError
from strategies.core.condensation import Condensation
from strategies.core.protocol import Shortened, Verdict
from strategies.core.replay import Replayed, shows_protected_messages
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import fold

TRIGGERS = {
    # A prepared condensation is applied when the mark is reached.
    Requirement.PREPARE: Trigger.THRESHOLD,
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}

_log = logging.getLogger(__name__)


class MakeResult(NamedTuple):
    """A condensation, or the reason why there is none."""

    condensation: Condensation | None
    reason: str = ""
    own_tokens: int = 0
    """Tokens of our model calls for this request."""
    used_model: bool = False
    """Whether any of its texts is a model's."""
    failure: str = ""
    """The reason why the store did not take the record, if it did not."""
    store_seconds: float = 0.0
    """Seconds that a flight waited for the store."""


class Job(NamedTuple):
    """A condensation that a request needs now."""

    requirement: Requirement
    decision: Decision
    context: RequestContext
    until: float
    """When the request stops waiting for models: a time of the event loop's clock."""

    @property
    def name(self) -> str:
        """The name of this work: the same in all processes of one version."""
        chain = self.context.history.digests
        return self.context.work_name(
            self.requirement.value, chain[-1] if chain else b"", self.decision.base.applied_id
        )


@dataclass(slots=True, eq=False)
class Maker:
    """Makes condensations; one per app."""

    _runner: PipelineRunner
    _keeper: Keeper
    _leases: Leases
    _tasks: OwnedTasks
    _clock: Callable[[], float]

    async def project(self, requirement: Requirement, decision: Decision, context: RequestContext) -> MakeResult:
        """Plans the condensation with placeholder texts of the maximum length; calls no model, records nothing."""
        facts = context.session_facts(self._clock())
        started = perf_counter()
        projected = await self._runner.project(requirement, decision.view, context.policy, facts)
        return self._result_of(requirement, projected, decision.base, context.policy, started)

    async def prepare(
        self, base: Replayed, context: RequestContext, caller: Caller, verdict: Verdict | None = None
    ) -> MakeResult:
        """Makes a condensation for a later request, and records it as prepared, not applied; this may take minutes.

        With a judge's `verdict` the record follows that.
        """
        requirement, started = Requirement.PREPARE, perf_counter()
        facts = context.session_facts(self._clock(), verdict)
        attempted = await self._runner.run(requirement, base.view, context.policy, facts, caller)
        result = self._result_of(requirement, attempted, base, context.policy, started)
        if result.condensation is None or verdict is None:
            return await self._record_prepared(result, context)
        judged = replace(result.condensation, trigger=Trigger.JUDGE.value)
        kept = await self._record_prepared(result._replace(condensation=judged), context)
        if kept.condensation is not None and kept.condensation.trigger != judged.trigger:
            # The same messages were prepared for a mark already, but only a judge's record is applied before that mark.
            kept = await self._record_prepared(result._replace(condensation=_deeper(judged)), context)
        return kept

    async def _record_prepared(self, result: MakeResult, context: RequestContext) -> MakeResult:
        if result.condensation is None:
            return result
        try:
            return result._replace(
                condensation=await self._keeper.record(context.recognised, result.condensation, standing=False)
            )
        except StoreError as error:
            return result._replace(failure=error.reason)

    async def make(
        self, requirement: Requirement, decision: Decision, context: RequestContext, until: float
    ) -> MakeResult:
        """The condensation that a requirement calls for, recorded if anything of the request may be stored.

        Models are waited for until `until`, a time of the event loop's clock.
        """
        job = Job(requirement, decision, context, until)
        if not (context.may_store and RULES[requirement].asks):
            return await self._run_and_record(job)
        clock = asyncio.get_running_loop().time
        began = clock()
        result, is_leader = await self._tasks.share(job.name, self._single_flight(job), _is_useful)
        if is_leader:
            return result
        context.recognised.patience.spend(min(result.store_seconds, clock() - began))
        # A request that joined the flight records the result too: its key may be another one, or the store may have
        # lost the record since.
        return await self._record(result._replace(own_tokens=0), context)

    async def _single_flight(self, job: Job) -> MakeResult:
        """Makes the condensation for all requests that share this flight.

        The result says how long the flight waited for the store: each of them has waited for it so long.
        """
        patience = job.context.recognised.patience
        before = patience.remaining
        result = await (self._under_lease(job) if _can_ask(job.context.policy) else self._unless_recorded(job))
        return result._replace(store_seconds=before - patience.remaining)

    async def _under_lease(self, job: Job) -> MakeResult:
        """Takes over what another replica has made, or makes it in what remains of the time that the client waits."""
        context = job.context
        request, patience = context.request, context.recognised.patience
        async with self._leases.turn(request.tenant, job.name, job.until, patience, request.trust) as turn:
            theirs = decoded_or_none(turn.received, standing=True)
            if theirs is not None and _shows_required(theirs, context):
                return await self._record(MakeResult(theirs), context)
            result = await (self._unless_recorded(job) if turn.held else self._run_and_record(job))
            turn.handover = handed_over(result.condensation)
            return result

    async def _unless_recorded(self, job: Job) -> MakeResult:
        context, applied = job.context, job.decision.applied
        recorded = await self._keeper.standing_since(context.recognised, context.history.digests)
        # A prepared record that this request has applied already, and that was not enough, has just become standing.
        is_applied = recorded is not None and applied is not None and recorded.id == applied.id
        if recorded is not None and not is_applied and _shows_required(recorded, context):
            return MakeResult(recorded)
        return await self._run_and_record(job)

    async def _run_and_record(self, job: Job) -> MakeResult:
        return await self._record(await self._run(job), job.context)

    async def _record(self, result: MakeResult, context: RequestContext) -> MakeResult:
        """Records a condensation, and returns the record that counts: ours, or that of the first writer."""
        if result.condensation is None or not context.may_store:
            return result
        try:
            return result._replace(condensation=await self._record_first_fitting(result.condensation, context))
        except StoreError as error:
            return result._replace(failure=error.reason)

    async def _record_first_fitting(self, ours: Condensation, context: RequestContext) -> Condensation:
        """Records ours unless an earlier record fits this request.

        A record that was made for a longer transcript may hide what this view must show: then ours is recorded one
        step deeper.
        """
        kept = await self._keeper.record(context.recognised, ours, standing=True)
        while kept.pieces != ours.pieces and not _shows_required(kept, context):
            ours = _deeper(ours)
            kept = await self._keeper.record(context.recognised, ours, standing=True)
        return kept

    async def _run(self, job: Job) -> MakeResult:
        requirement, decision, context, until = job
        facts, base, started = context.session_facts(self._clock()), decision.base, perf_counter()
        caller = context.caller(self._tasks, background=False)
        attempted = await self._runner.run_until(until, requirement, base.view, context.policy, facts, caller)
        if attempted.late is not None and not context.may_store:
            attempted.late.cancel()
        elif attempted.late is not None:
            late = self._record_late(attempted.late, base, context.with_fresh_patience(), started)
            self._tasks.start(late, context.work_key, always=True)
        return self._result_of(requirement, attempted, base, context.policy, started)

    async def _record_late(
        self, working: asyncio.Task[RunResult], base: Replayed, context: RequestContext, started: float
    ) -> Condensation | None:
        """Records what models wrote too late for the request that waited, a step deeper than what replaced it."""
        late = await working
        written = late.outcome is not None and any(
            stage.asks and stage.name in late.outcome.stages for stage in context.policy.stages
        )
        if not (written and context.may_store):
            return None
        result = self._result_of(Requirement.PREPARE, late, base, context.policy, started)
        if result.condensation is None:
            return None
        kept = await self._record_prepared(result._replace(condensation=_deeper(result.condensation)), context)
        await self._keeper.amend(context.recognised, lambda session: session.with_totals(own_tokens=late.own_tokens))
        return kept.condensation

    def extended_over(self, condensation: Condensation, shortened: Shortened) -> Condensation:
        """The record of a view that begins with the head of `condensation`, and drops messages after it."""
        view = shortened.view
        digest = view.transcript.digests[view.covered_count - 1]
        return replace(
            condensation,
            id=_new_id(),
            digest=digest,
            covered=view.covered_count,
            pieces=self._keeper.pieces_to_record(view),
            tokens_after=view.tokens,
            metadata={**condensation.metadata, **shortened.metadata},
        )

    def _result_of(
        self, requirement: Requirement, attempted: RunResult, base: Replayed, policy: Policy, started: float
    ) -> MakeResult:
        result = MakeResult(None, attempted.reason, attempted.own_tokens, attempted.asked_model)
        if attempted.outcome is None:
            return result
        outcome, spent = attempted.outcome, (perf_counter() - started) * 1000
        view, budget = outcome.view, policy.budget
        digest = view.transcript.digests[view.covered_count - 1]
        depth = base.applied.depth + 1 if base.applied else 1
        name, now = _new_id(), self._clock()
        record = Condensation(
            id=name,
            digest=digest,
            covered=view.covered_count,
            depth=depth,
            pieces=self._keeper.pieces_to_record(view),
            window=budget.nominal_window if budget else 0,
            strategy=policy.pipeline.text,
            requirement=requirement.value,
            trigger=_trigger(requirement, policy).value,
            tokens_before=base.view.tokens,
            tokens_after=view.tokens,
            created_at=now,
            cards=self._keeper.cards_to_record(outcome.cards, name, now),
            own_tokens=attempted.own_tokens,
            parent=base.applied.id if base.applied else None,
            metadata={
                "stages": outcome.stages,
                "reasons": outcome.reasons,
                "compressionDuration": round(spent, 1),
                **outcome.metadata,
            },
        )
        return result._replace(condensation=record)


def _trigger(requirement: Requirement, policy: Policy) -> Trigger:
    """The trigger of a record: under a strategy that judges, what was prepared for a mark waits for the hard limit."""
    waits = requirement is Requirement.PREPARE and policy.judging is not None
    return Trigger.CONTEXT_LIMIT if waits else TRIGGERS[requirement]


def _new_id() -> str:
    """A new random id for a condensation; its record is found by chain and depth, not by the id."""
    return "c" + secrets.token_hex(8)


def _deeper(condensation: Condensation) -> Condensation:
    """The same record one step deeper, under a name of its own."""
    name = _new_id()
    cards = tuple(replace(each, condensation=name) for each in condensation.cards)
    return replace(condensation, depth=condensation.depth + 1, id=name, cards=cards)


def _shows_required(condensation: Condensation, context: RequestContext) -> bool:
    """Whether a condensation leaves in this request's view what must be there."""
    return shows_protected_messages(fold(context.history, (condensation.overlay,), context.overhead, context.counter))


def _is_useful(result: MakeResult) -> bool:
    """Whether a result is still given out to requests that ask for it a moment later."""
    return result.condensation is not None and not result.failure


def _can_ask(policy: Policy) -> bool:
    """Whether any stage of the pipeline, or of the ladder after it, may ask a model."""
    return any(stage.asks for stage in (*policy.stages, *policy.ladder))


def handed_over(made: Condensation | None) -> bytes:
    """What the holder of a lease leaves for other replicas."""
    return compress(encode_condensation(made)) if made else b""


def decoded_or_none(left: bytes, *, standing: bool = False) -> Condensation | None:
    """The condensation that another replica has handed over; None if there is none, or it cannot be read."""
    try:
        return decode_condensation(decompress(left), standing=standing) if left else None
    except (*UNREADABLE, StoreError):
        _log.warning("what another replica left cannot be read")
        return None
