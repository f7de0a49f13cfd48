"""Making a condensation: once for all who want the same one, and what the store holds of it is what counts.

Requests at one chain share a flight while a model may be asked. A flight begins by looking whether the store has got
what is wanted since the request was recognised, and ends when its record is kept: so a request that comes too late for
a flight finds its record instead of asking again. The flights of several replicas share a lease where a model can be
asked: one of them does the work and leaves the others its record. That saves calls and decides nothing: the first
writer of a record wins, with a lease or without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import replace
from hashlib import blake2b
from time import perf_counter
from typing import NamedTuple

from proxy.asking import Caller
from proxy.condensing.attempts import Attempted, Attempts
from proxy.condensing.decision import Decision, Trigger
from proxy.condensing.leases import Leases
from proxy.condensing.policy import Policy
from proxy.condensing.single_flight import Flights
from proxy.request.intake import Case, milliseconds
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.keeping import Keeper
from proxy.sessions.session import MAIN
from proxy.store.base import StoreError
from proxy.store.codec import UNREADABLE, decode_condensation, encode_condensation
from strategies.core.condensation import Condensation
from strategies.core.protocol import Verdict
from strategies.core.replay import Replayed, shows_what_it_must
from strategies.core.requirement import RULES, Requirement
from strategies.core.view import View, fold
from strategies.pipeline import Outcome

TRIGGERS = {
    # Whatever was prepared is applied when the mark is reached.
    Requirement.PREPARE: Trigger.THRESHOLD,
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}

_log = logging.getLogger(__name__)


class Made(NamedTuple):
    """A condensation, or the reason why there is none; `failure` where the store did not take it.

    `own_tokens` are those of our model calls for this request, `used_model` whether any text is a model's,
    `store_seconds` what a flight waited for the store.
    """

    condensation: Condensation | None
    reason: str = ""
    own_tokens: int = 0
    used_model: bool = False
    failure: str = ""
    store_seconds: float = 0.0


class Maker:
    """Makes condensations; one per app."""

    def __init__(
        self,
        attempts: Attempts,
        keeper: Keeper,
        leases: Leases,
        tasks: OwnedTasks[Condensation | None],
        clock: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._tasks = tasks
        self._keeper = keeper
        self._leases = leases
        self._clock = clock
        self._flights: Flights[Made] = Flights(tasks, lambda made: made.condensation is not None and not made.failure)

    async def project(self, requirement: Requirement, decision: Decision, case: Case) -> Made:
        """What would be made, with texts of the size that a model's may have; nothing is asked or kept."""
        past = case.past(self._clock())
        started = perf_counter()
        projected = await self._attempts.project(requirement, decision.view, case.policy, past)
        return self._made(requirement, projected, base_of(decision), case.policy, started)

    async def prepare(self, base: Replayed, case: Case, caller: Caller, verdict: Verdict | None = None) -> Made:
        """A condensation of a view for a later request, recorded without being applied; it may take minutes.

        It follows a judge's `verdict`, if there is one.
        """
        requirement, started = Requirement.PREPARE, perf_counter()
        past = case.past(self._clock(), verdict)
        attempted = await self._attempts.attempt(requirement, base.view, case.policy, past, caller)
        made = self._made(requirement, attempted, base, case.policy, started)
        if made.condensation is None or verdict is None:
            return await self._kept_for_later(made, case)
        judged = replace(made.condensation, trigger=Trigger.JUDGE.value)
        kept = await self._kept_for_later(made._replace(condensation=judged), case)
        if kept.condensation is not None and kept.condensation.trigger != judged.trigger:
            # The same messages were prepared for a mark already. Only a judge's record is applied before that.
            kept = await self._kept_for_later(made._replace(condensation=_deeper(judged)), case)
        return kept

    async def _kept_for_later(self, made: Made, case: Case) -> Made:
        if made.condensation is None:
            return made
        try:
            return made._replace(condensation=await self._keeper.prepare(case.recognised, made.condensation))
        except StoreError as error:
            return made._replace(failure=error.reason)

    async def make(self, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        """What the requirement leads to, recorded where anything of the request may be.

        Models are waited for until a time of the loop's clock.
        """
        if not (case.keeps and RULES[requirement].asks):
            return await self._work(requirement, decision, case, until)
        chain, applied = case.history.digests, decision.applied
        work = work_name(requirement.value, chain[-1] if chain else b"", applied.id if applied else "", case)
        clock = asyncio.get_running_loop().time
        began = clock()
        made, led = await self._flights.join(work, self._flown(work, requirement, decision, case, until))
        if led:
            return made
        case.recognised.patience.spend(min(made.store_seconds, clock() - began))
        # Who came along keeps it too: under a key of its own, or in a store that has lost it since.
        return await self._kept(made._replace(own_tokens=0), case)

    async def _flown(self, work: str, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        """What a flight leads to, and what it took of its request's patience: all who come along have waited so."""
        before = case.recognised.patience.left
        if _can_ask(case.policy):
            made = await self._leased(work, requirement, decision, case, until)
        else:
            made = await self._first_looked_up(requirement, decision, case, until)
        return made._replace(store_seconds=before - case.recognised.patience.left)

    async def _leased(self, work: str, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        """What another replica leaves, or what is made in what remains of the time that the client may wait."""
        async with self._leases.turn(case.request.tenant, work, until, case.recognised.patience) as turn:
            theirs = readable(turn.left, standing=True)
            if theirs is not None and _shows(theirs, case):
                return await self._kept(Made(theirs), case)
            if turn.held:
                made = await self._first_looked_up(requirement, decision, case, until)
            else:
                made = await self._work(requirement, decision, case, until)
            turn.leaves = encode_condensation(made.condensation) if made.condensation else b""
            return made

    async def _first_looked_up(self, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        ready = await self._keeper.made_since(case.recognised, case.history.digests)
        # What was prepared stands since a moment ago where this request has taken it, and was not enough.
        is_taken = ready is not None and decision.applied is not None and ready.id == decision.applied.id
        if ready is not None and not is_taken and _shows(ready, case):
            return Made(ready)
        return await self._work(requirement, decision, case, until)

    async def _work(self, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        return await self._kept(await self._attempt(requirement, decision, case, until), case)

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
        kept = await self._keeper.keep(case.recognised, ours)
        while kept.pieces != ours.pieces and not _shows(kept, case):
            ours = _deeper(ours)
            kept = await self._keeper.keep(case.recognised, ours)
        return kept

    async def _attempt(self, requirement: Requirement, decision: Decision, case: Case, until: float) -> Made:
        past, base, started = case.past(self._clock()), base_of(decision), perf_counter()
        caller = caller_of(case, self._tasks, background=False)
        attempted = await self._attempts.attempt_until(until, requirement, base.view, case.policy, past, caller)
        if attempted.late is not None and not case.keeps:
            attempted.late.cancel()
        elif attempted.late is not None:
            self._tasks.add(self._keep_late(attempted.late, base, case.apart(), started), work_of(case))
        return self._made(requirement, attempted, base, case.policy, started)

    async def _keep_late(
        self, working: asyncio.Task[Attempted], base: Replayed, case: Case, started: float
    ) -> Condensation | None:
        """Keeps what models wrote too late for the one who waited, a step deeper than what took its place."""
        late = await working
        written = late.outcome is not None and any(
            stage.asks and stage.name in late.outcome.stages for stage in case.policy.stages
        )
        if not (written and case.keeps):
            return None
        made = self._made(Requirement.PREPARE, late, base, case.policy, started)
        if made.condensation is None:
            return None
        kept = await self._kept_for_later(made._replace(condensation=_deeper(made.condensation)), case)
        await self._keeper.amend(case.recognised, lambda session: session.counted(own_tokens=late.own_tokens))
        return kept.condensation

    def reaching(self, made: Condensation, view: View) -> Condensation:
        """The record of a view whose head is that of `made`, and reaches further because it drops what came behind."""
        digest = view.transcript.digests[view.covered - 1]
        return replace(
            made,
            id=_id(digest, made.depth),
            digest=digest,
            covered=view.covered,
            pieces=self._keeper.pieces(view),
            tokens_after=view.tokens,
            metadata={**made.metadata, "rolledBackMessageCount": view.covered - made.covered},
        )

    def _made(
        self, requirement: Requirement, attempted: Attempted, base: Replayed, policy: Policy, started: float
    ) -> Made:
        made = Made(None, attempted.reason, attempted.own_tokens, attempted.asked)
        if attempted.outcome is None:
            return made
        spent = milliseconds(started)
        record = self._condensation(requirement, base, policy, attempted.outcome, attempted.own_tokens, spent)
        return made._replace(condensation=record)

    def _condensation(
        self,
        requirement: Requirement,
        base: Replayed,
        policy: Policy,
        outcome: Outcome,
        own_tokens: int,
        spent: float,
    ) -> Condensation:
        view, budget = outcome.view, policy.budget
        digest = view.transcript.digests[view.covered - 1]
        depth = base.applied.depth + 1 if base.applied else 1
        now = self._clock()
        return Condensation(
            id=_id(digest, depth),
            digest=digest,
            covered=view.covered,
            depth=depth,
            pieces=self._keeper.pieces(view),
            window=budget.made_for if budget else 0,
            strategy=str(policy.pipeline),
            requirement=requirement.value,
            trigger=TRIGGERS[requirement].value,
            tokens_before=base.view.tokens,
            tokens_after=view.tokens,
            created_at=now,
            cards=self._keeper.cards(outcome.cards, _id(digest, depth), now),
            own_tokens=own_tokens,
            parent=base.applied.id if base.applied else None,
            metadata={
                "stages": outcome.stages,
                "reasons": outcome.reasons,
                "compressionDuration": round(spent, 1),
                **outcome.metadata,
            },
        )


def base_of(decision: Decision) -> Replayed:
    """What a decision's condensation begins from."""
    return Replayed(decision.view, decision.applied)


def _id(digest: bytes, depth: int) -> str:
    return f"c{digest.hex()[:12]}-{depth}"


def _deeper(condensation: Condensation) -> Condensation:
    """The same record a step deeper, beside the one that has its name."""
    depth, name = condensation.depth + 1, _id(condensation.digest, condensation.depth + 1)
    cards = tuple(replace(each, condensation=name) for each in condensation.cards)
    return replace(condensation, depth=depth, id=name, cards=cards)


def _shows(condensation: Condensation, case: Case) -> bool:
    """Whether a condensation leaves in this request's view what must stand there."""
    return shows_what_it_must(fold(case.history, (condensation.overlay,), case.overhead, case.counter))


def _can_ask(policy: Policy) -> bool:
    """Whether any stage of a pipeline, or of the ladder behind it, may ask a model."""
    return any(stage.asks for stage in (*policy.stages, *policy.ladder))


def readable(left: bytes, *, standing: bool = False) -> Condensation | None:
    """The condensation that another replica has left; None where there is none that we can read."""
    try:
        return decode_condensation(left, standing=standing) if left else None
    except UNREADABLE:
        _log.warning("what another replica left cannot be read")
        return None


def work_of(case: Case) -> Hashable:
    """The key of the work for a branch: there is one piece of it at a time."""
    session = case.recognised.session
    return case.recognised.key, session.branch_for(case.history.digests) if session else MAIN


def caller_of(case: Case, tasks: OwnedTasks[Condensation | None], *, background: bool) -> Caller:
    """On whose behalf models are asked in the work for a branch, and who may come to wait for that."""
    return replace(case.caller(background=background), waiters=tasks.waiters(work_of(case)))


def work_name(kind: str, head: bytes, applied: str, case: Case) -> str:
    """The name of a work, the same in all processes of one version: a digest of its kind, of whose it is, of the chain
    that ends with `head`, of the condensation `applied` that its view begins from, and of the end that it leads to."""
    policy = case.policy
    parts = (
        case.request.tenant,
        case.recognised.identity,
        case.request.model,
        head,
        applied,
        kind,
        str(policy.pipeline),
        [str(getattr(stage, "options", "")) for stage in policy.stages],
        policy.budget and policy.budget.unscaled,
    )
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
