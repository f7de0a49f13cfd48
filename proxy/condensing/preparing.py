"""Preparation: prepares for the next request once this one has its reply.

Past the `prepare` mark a condensation is made while no request waits, and recorded as prepared; the first request that
needs it applies it. Under a strategy that judges, votes are held first, and a YES has its condensation prepared at
once. If no votes are held, the session records why, for people to read. Each branch has one such task at a time. A
request that must be condensed now waits for that task rather than starting another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from proxy.asking import Caller
from proxy.condensing.case import Case
from proxy.condensing.decision import Decision, fold_view
from proxy.condensing.judging import Judges, VoteRound
from proxy.condensing.leases import Leases
from proxy.condensing.making import (
    Maker,
    MakeResult,
    applied_id,
    base_of,
    branch_of,
    caller_of,
    decoded_or_none,
    handed_over,
    work_key,
    work_name,
)
from proxy.reasons import Action
from proxy.runtime.lru import Lru
from proxy.runtime.offload import message_load, offload
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.keeping import Keeper
from proxy.sessions.session import FailedTry
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.protocol import Judging, Verdict
from strategies.core.replay import JUDGED, Replayed, best_prepared, prepared_in
from strategies.core.requirement import RULES, Requirement, may_be_raised
from strategies.core.view import View
from strategies.pipeline import is_due

MAX_HELD = 16 * 1024 * 1024
"""Approximate bytes of memory that waiting background work may hold; beyond that none is started."""
_MEMORY_PER_BYTE = 8
"""Bytes of memory that a piece of work takes for one byte of its request."""
_WORK_BYTES = 64 * 1024
"""Bytes of memory that a piece of work takes in addition."""
_REMEMBERED = 2_000
"""Branches of which the last failed try is kept."""
_PREPARE = Requirement.PREPARE
RECORD_FAILED = "record-failed"

_log = logging.getLogger(__name__)


class DecisionSnapshot(NamedTuple):
    """The part of a decision that background work needs, taken now because the decision goes on changing."""

    base: Replayed
    is_new: bool
    """Whether the view applies a condensation that no view has applied before."""

    @classmethod
    def of(cls, decision: Decision) -> DecisionSnapshot:
        """A snapshot of a decision as it is now."""
        return cls(base_of(decision), decision.action is Action.CONDENSED)

    def recounted(self, case: Case) -> DecisionSnapshot:
        """The same view with the tokens that a case has counted."""
        return self._replace(base=Replayed(fold_view(case, self.base.applied), self.base.applied))


class Preparer:
    """Prepares condensations; one per app.

    `counted` counts the tokens of a case whose sizes were estimated from lengths.
    """

    def __init__(
        self,
        *,
        maker: Maker,
        judges: Judges,
        keeper: Keeper,
        leases: Leases,
        tasks: OwnedTasks,
        counted: Callable[[Case], Awaitable[Case]],
        clock: Callable[[], float],
    ) -> None:
        self._maker = maker
        self._judges = judges
        self._keeper = keeper
        self._leases = leases
        self._tasks = tasks
        self._counted = counted
        self._clock = clock
        self._failed_tries: Lru[Hashable, FailedTry] = Lru(_REMEMBERED)
        self._held = 0

    def follow_up(self, decision: Decision, case: Case) -> None:
        """Starts the work that has become due with a request, once its reply has been sent."""
        if _may_prepare(case) and (case.policy.judging is not None or _may_be_due(decision.view, case)):
            work = self._run_if_room(DecisionSnapshot.of(decision), case.with_fresh_patience())
            self._tasks.start(work, work_key(case))

    async def _run_if_room(self, snapshot: DecisionSnapshot, case: Case) -> Condensation | None:
        """Runs in the background unless other work holds too much; a later request then makes the work due again."""
        size = case.request.body.size * _MEMORY_PER_BYTE + _WORK_BYTES
        if self._held and self._held + size > MAX_HELD:
            return None
        self._held += size
        try:
            return await self._run(snapshot, case, background=True)
        finally:
            self._held -= size

    async def vote_before_forwarding(self, decision: Decision, case: Case, deadline: float) -> list[Condensation]:
        """The condensation that votes held before forwarding lead to, as a list of one or none.

        It is waited for until `deadline`, a time of the event loop's clock.
        """
        stage = case.policy.judging
        if stage is None or not stage.inline or not _may_prepare(case):
            return []
        snapshot = DecisionSnapshot.of(decision)
        if await self._why_no_vote(stage, snapshot, case):
            return []
        self._tasks.start(self._run(snapshot, case, background=False), work_key(case))
        return await self._wait_here(case, deadline)

    async def wait_for_preparation(self, case: Case, deadline: float) -> list[Condensation]:
        """The condensation that a preparation under way for this branch leads to, as a list of one or none.

        The preparation may be this replica's or another's. It is waited for until `deadline`, a time of the event
        loop's clock.
        """
        if not _may_prepare(case):
            return []
        return await self._wait_here(case, deadline) or await self._wait_elsewhere(case, deadline)

    async def _wait_here(self, case: Case, deadline: float) -> list[Condensation]:
        prepared = await self._tasks.result_of(work_key(case), deadline)
        return [prepared] if prepared is not None else []

    async def _wait_elsewhere(self, case: Case, deadline: float) -> list[Condensation]:
        """The condensation that another replica prepares for the head that this branch had with its last request."""
        branch = case.branch
        if branch is None or not case.policy.prepares:
            return []
        work = work_name(Requirement.PREPARE.value, branch.head, branch.applied, case)
        result = decoded_or_none(
            await self._leases.result(case.request.tenant, work, deadline, case.recognised.patience)
        )
        return [result] if result is not None else []

    async def _why_no_vote(self, stage: Judging, snapshot: DecisionSnapshot, case: Case) -> str:
        """Why no votes are held on a snapshot; "" if they are."""
        view, budget = snapshot.base.view, case.policy.budget
        if budget is None:
            return "no-judge"
        if snapshot.is_new:
            return "cool-down"
        if any(each.reason for each in self._recent_failures(snapshot.base, case, budget)):
            return RECORD_FAILED
        load = message_load(len(view.transcript.chain), view.tokens)
        return await offload(load, stage.skip_reason, view, budget, case.session_facts(self._clock()))

    async def _run(self, snapshot: DecisionSnapshot, case: Case, *, background: bool) -> Condensation | None:
        snapshot, case = await self._recounted_for_votes(snapshot, case)
        verdict = await self._verdict(snapshot, case, background=background) or self._verdict_to_retry(snapshot, case)
        if verdict is not None and verdict.yes:
            preparing = case.with_fresh_patience() if background else case
            return await self._prepare(snapshot.base, preparing, verdict, background=background)
        budget = case.policy.budget
        if budget is None or not (background and case.policy.prepares):
            return None
        return await self._prepare_for_mark(snapshot.base, case, budget)

    async def _recounted_for_votes(self, snapshot: DecisionSnapshot, case: Case) -> tuple[DecisionSnapshot, Case]:
        """Counts the snapshot's tokens if a vote seems due: sizes guessed from lengths prove too little for one."""
        stage = case.policy.judging
        if stage is None or not case.is_estimated or await self._why_no_vote(stage, snapshot, case):
            return snapshot, case
        case = await self._counted(case)
        return snapshot.recounted(case), case

    async def _verdict(self, snapshot: DecisionSnapshot, case: Case, *, background: bool) -> Verdict | None:
        """The verdict of the judges; in the background, if there is none, the session records why."""
        stage = case.policy.judging
        if stage is None:
            return None
        vote_round = VoteRound(None, await self._why_no_vote(stage, snapshot, case))
        holds = stage.inline is not background and (case.policy.prepares or not background)
        if holds and not vote_round.skip_reason:
            vote_round = await self._judges.vote(stage, snapshot.base, case, self._caller(case, background=background))
        if vote_round.verdict is None and background:
            await self._judges.note(stage, vote_round, snapshot.base.view, case)
        return vote_round.verdict

    async def _prepare_for_mark(self, base: Replayed, case: Case, budget: Budget) -> Condensation | None:
        # A record that would save too little to be applied at the trigger must not stand in the way of a better one.
        shrink = RULES[Requirement.SOFT].least_shrink
        waiting = best_prepared(base.view, base.applied, case.recognised.condensations, budget, least_shrink=shrink)
        if self._recent_failures(base, case, budget) or not _needs_preparation(base, case, budget, waiting):
            return None
        return await self._prepare(base, case, None, background=True)

    def _failures(self, case: Case) -> list[FailedTry]:
        """The last failed tries of this branch: what this process knows, and what the session had stored."""
        key, session = work_key(case), case.recognised.session
        stored = session.failed_try if session else None
        known = (self._failed_tries.get(key), stored if stored and stored.branch == branch_of(case) else None)
        return [each for each in known if each is not None]

    def _recent_failures(self, base: Replayed, case: Case, budget: Budget) -> list[FailedTry]:
        """The failed tries since which the branch has not changed enough: none is repeated on every turn."""
        return [each for each in self._failures(case) if not _has_changed_enough(each, base, budget)]

    def _verdict_to_retry(self, snapshot: DecisionSnapshot, case: Case) -> Verdict | None:
        """The last verdict, if it stands, it was a YES, its record failed, and the view has grown by a step since."""
        base, budget, session = snapshot.base, case.policy.budget, case.recognised.session
        if budget is None or session is None or case.policy.judging is None or snapshot.is_new:
            return None
        failed = [each for each in self._failures(case) if each.judged and each.applied == applied_id(base)]
        if not failed or self._recent_failures(base, case, budget):
            return None
        last = next((each for each in reversed(session.verdicts) if each.stands_in(base.view.transcript.digests)), None)
        return last if last is not None and last.yes else None

    async def _note(self, result: MakeResult, base: Replayed, case: Case, verdict: Verdict | None) -> None:
        """Counts the cost of a preparation, and notes whether it failed: in the session, and in the log."""
        failed = None
        if result.condensation is None:
            is_failure = result.used_model or verdict is not None
            reason = result.reason if is_failure else ""
            at = self._clock()
            failed = FailedTry(applied_id(base), base.view.tokens, reason, verdict is not None, branch_of(case), at)
            self._failed_tries.put(work_key(case), failed)
            if reason:
                _log.warning("no record was prepared%s: %s", " after a YES" if verdict else "", reason)
        session = case.recognised.session
        was_failed = session is not None and session.failed_try is not None
        told = failed if failed and failed.reason else None
        if result.own_tokens or told or was_failed:
            await self._keeper.amend(
                case.recognised,
                lambda session: session.with_totals(own_tokens=result.own_tokens)._replace(failed_try=told),
            )

    async def _prepare(
        self, base: Replayed, case: Case, verdict: Verdict | None, *, background: bool
    ) -> Condensation | None:
        head = base.view.transcript.digests[-1]
        work, now = (
            work_name(Requirement.PREPARE.value, head, applied_id(base), case),
            asyncio.get_running_loop().time(),
        )
        request, patience = case.request, case.recognised.patience
        async with self._leases.turn(request.tenant, work, now, patience, request.trust) as turn:
            if not turn.held or await self._is_prepared_already(base, case, verdict):
                return None
            result = await self._maker.prepare(base, case, self._caller(case, background=background), verdict)
            turn.handover = handed_over(result.condensation)
        await self._note(result, base, case, verdict)
        return result.condensation

    def _caller(self, case: Case, *, background: bool) -> Caller:
        return caller_of(case, self._tasks, background=background)

    async def _is_prepared_already(self, base: Replayed, case: Case, verdict: Verdict | None) -> bool:
        """Whether such a condensation has been prepared since the session was read.

        If there is a verdict, only a condensation that a judge wanted counts.
        """
        since = await self._keeper.recorded_since(case.recognised)
        prepared = prepared_in(since, base.view.transcript.digests, base.applied)
        return any(verdict is None or each.trigger == JUDGED for each in prepared)


def _may_prepare(case: Case) -> bool:
    pipeline = case.policy.pipeline
    changes = not (pipeline.is_off or pipeline.observe)
    return changes and case.may_store and case.policy.asks_models and case.policy.budget is not None


def _may_be_due(view: View, case: Case) -> bool:
    """Whether a mark or a stage may make anything due; mostly not, and this finds out without a task."""
    policy, budget = case.policy, case.policy.budget
    if budget is None or not policy.prepares:
        return False
    return view.tokens >= budget.prepare or any(is_due(stage, view, budget) for stage in policy.stages)


def _needs_preparation(base: Replayed, case: Case, budget: Budget, waiting: Replayed | None) -> bool:
    """Whether a view should have a condensation prepared.

    A stage's own trigger says so, or the `prepare` mark and a step of growth. A prepared condensation that waits is
    enough while its view would be below the mark; after that another replaces it.
    """
    tokens = base.view.tokens
    if waiting is not None and waiting.applied is not None:
        is_past = waiting.view.tokens >= budget.prepare
        return is_past and may_be_raised(_PREPARE, tokens, budget, waiting.applied.tokens_before)
    # If the last condensation asked no model and left the view past the mark, one that asks need not wait for growth.
    since = base.applied.tokens_after if base.applied and base.applied.own_tokens else None
    past_mark = tokens >= budget.prepare and may_be_raised(_PREPARE, tokens, budget, since)
    return past_mark or any(is_due(stage, base.view, budget) for stage in case.policy.stages)


def _has_changed_enough(failed: FailedTry, base: Replayed, budget: Budget) -> bool:
    """Whether a branch has another base than when it failed, or has grown by a step."""
    tokens = base.view.tokens
    return applied_id(base) != failed.applied or tokens < failed.tokens or tokens - failed.tokens >= budget.step
