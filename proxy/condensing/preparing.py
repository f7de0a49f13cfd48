"""Preparation: what is done for the next request once this one has its reply.

Past the `prepare` mark a condensation is made while nobody waits, and kept as prepared: the first request that needs
it takes it. Under a strategy that judges, votes are held first, and a YES has its condensation prepared at once; where
none are held, the session is told why, for people. There is one piece of such work at a time for each branch. A request
that must be condensed now waits for it rather than starting another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from proxy.asking import Caller
from proxy.condensing.decision import Action, Decision
from proxy.condensing.judging import Judges, VoteRound
from proxy.condensing.leases import Leases
from proxy.condensing.making import Maker, base_of, caller_of, readable, work_name, work_of
from proxy.condensing.undecided import folded
from proxy.request.intake import Case
from proxy.runtime.lru import Lru
from proxy.runtime.offload import loaded, offloaded
from proxy.runtime.owned_tasks import OwnedTasks
from proxy.sessions.keeping import Keeper
from proxy.store.codec import encode_condensation
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.protocol import Judging, Verdict
from strategies.core.ready import JUDGED, prepared_in, ready
from strategies.core.replay import Replayed
from strategies.core.requirement import RULES, Requirement, is_time
from strategies.core.view import View
from strategies.pipeline import due

_REMEMBERED = 10_000
_PREPARE = Requirement.PREPARE

Background = OwnedTasks[Condensation | None]


class Tried(NamedTuple):
    """Where a branch's last preparation began: the condensation it rested on, and its size."""

    applied: str
    tokens: int
    messages: int


class DecisionSnapshot(NamedTuple):
    """What a request leaves to work on, taken while its decision stands still: that goes on changing meanwhile.

    `is_new` says that the view applies what no view has applied before.
    """

    base: Replayed
    is_new: bool

    @classmethod
    def by(cls, decision: Decision) -> DecisionSnapshot:
        """What a decision leaves as it is now."""
        return cls(base_of(decision), decision.action is Action.CONDENSED)

    def counted(self, case: Case) -> DecisionSnapshot:
        """The same with the tokens that a case has counted."""
        return self._replace(base=Replayed(folded(case, self.base.applied), self.base.applied))


class Preparer:
    """Prepares condensations; one per app. `counted` gives a case with its tokens counted, not guessed by length."""

    def __init__(
        self,
        *,
        maker: Maker,
        judges: Judges,
        keeper: Keeper,
        leases: Leases,
        tasks: Background,
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
        self._tried: Lru[Hashable, Tried] = Lru(_REMEMBERED)

    def follow(self, decision: Decision, case: Case) -> None:
        """Starts what a request that has its reply makes due."""
        if _may_prepare(case) and (case.policy.judging is not None or _may_be_due(decision.view, case)):
            work = self._work(DecisionSnapshot.by(decision), case.apart(), background=True)
            self._tasks.start(work, work_of(case))

    async def ahead(self, decision: Decision, case: Case, deadline: float) -> list[Condensation]:
        """What votes that are held before forwarding lead to, until a time of the loop's clock."""
        stage = case.policy.judging
        if stage is None or not stage.inline or not _may_prepare(case):
            return []
        left = DecisionSnapshot.by(decision)
        if await self._skips(stage, left, case):
            return []
        self._tasks.start(self._work(left, case, background=False), work_of(case))
        return await self._landed(case, deadline)

    async def landed(self, case: Case, deadline: float) -> list[Condensation]:
        """What a preparation for this branch leads to that is under way here or elsewhere, until a time of the loop's
        clock."""
        if not _may_prepare(case):
            return []
        return await self._landed(case, deadline) or await self._left_elsewhere(case, deadline)

    async def _landed(self, case: Case, deadline: float) -> list[Condensation]:
        made = await self._tasks.landed(work_of(case), deadline)
        return [made] if made is not None else []

    async def _left_elsewhere(self, case: Case, deadline: float) -> list[Condensation]:
        """What another replica prepares for the head that this branch had with its last request."""
        branch = case.branch
        if branch is None or not case.policy.prepares:
            return []
        work = work_name(Requirement.PREPARE.value, branch.head, branch.applied, case)
        left = readable(await self._leases.left(case.request.tenant, work, deadline, case.recognised.patience))
        return [left] if left is not None else []

    async def _skips(self, stage: Judging, left: DecisionSnapshot, case: Case) -> str:
        """Why no votes are held on what a request has left; "" where they are."""
        view, budget = left.base.view, case.policy.budget
        if budget is None:
            return "no-judge"
        if left.is_new:
            return "cool-down"
        load = loaded(len(view.transcript.chain), view.tokens)
        return await offloaded(load, stage.skips, view, budget, case.past(self._clock()))

    async def _work(self, left: DecisionSnapshot, case: Case, *, background: bool) -> Condensation | None:
        left, case = await self._to_be_judged(left, case)
        verdict = await self._verdict(left, case, background=background)
        if verdict is not None and verdict.yes:
            preparing = case.apart() if background else case
            return await self._prepared(left.base, preparing, verdict, background=background)
        budget = case.policy.budget
        if budget is None or not (background and case.policy.prepares):
            return None
        return await self._for_a_mark(left.base, case, budget)

    async def _to_be_judged(self, left: DecisionSnapshot, case: Case) -> tuple[DecisionSnapshot, Case]:
        """What a request has left, with its tokens counted where a vote seems due: lengths prove too little for one."""
        stage = case.policy.judging
        if stage is None or not case.is_by_length or await self._skips(stage, left, case):
            return left, case
        case = await self._counted(case)
        return left.counted(case), case

    async def _verdict(self, left: DecisionSnapshot, case: Case, *, background: bool) -> Verdict | None:
        """What judges say of what a request has left; where they say nothing, the session is told why."""
        stage = case.policy.judging
        if stage is None:
            return None
        held = VoteRound(None, await self._skips(stage, left, case))
        holds = stage.inline is not background and (case.policy.prepares or not background)
        if holds and not held.skipped:
            held = await self._judges.vote(stage, left.base, case, self._caller(case, background=background))
        if held.verdict is None and background:
            await self._judges.note(stage, held, left.base.view, case)
        return held.verdict

    async def _for_a_mark(self, base: Replayed, case: Case, budget: Budget) -> Condensation | None:
        # What would save too little to be taken at the trigger must not keep a better one from being made.
        shrink = RULES[Requirement.SOFT].least_shrink
        waiting = ready(base.view, base.applied, case.recognised.condensations, budget, least_shrink=shrink)
        resting = base.applied.id if base.applied else ""
        now = Tried(resting, base.view.tokens, len(base.view.items))
        if not (_is_due(base, case, budget, waiting) and self._claim_try(work_of(case), now, budget)):
            return None
        return await self._prepared(base, case, None, background=True)

    def _claim_try(self, key: Hashable, now: Tried, budget: Budget) -> bool:
        """Whether a branch has changed enough since it was last tried to be tried again, which is noted."""
        if not _goes_on(self._tried.get(key), now, budget):
            return False
        self._tried.put(key, now)
        return True

    async def _prepared(
        self, base: Replayed, case: Case, verdict: Verdict | None, *, background: bool
    ) -> Condensation | None:
        head, resting = base.view.transcript.digests[-1], base.applied.id if base.applied else ""
        work, now = work_name(Requirement.PREPARE.value, head, resting, case), asyncio.get_running_loop().time()
        async with self._leases.turn(case.request.tenant, work, now, case.recognised.patience) as turn:
            if not turn.held or await self._is_made_since(base, case, verdict):
                return None
            made = await self._maker.prepare(base, case, self._caller(case, background=background), verdict)
            turn.leaves = encode_condensation(made.condensation) if made.condensation else b""
        if made.own_tokens:
            await self._keeper.amend(case.recognised, lambda session: session.counted(own_tokens=made.own_tokens))
        return made.condensation

    def _caller(self, case: Case, *, background: bool) -> Caller:
        return caller_of(case, self._tasks, background=background)

    async def _is_made_since(self, base: Replayed, case: Case, verdict: Verdict | None) -> bool:
        """Whether another has prepared the like since the session was read; nothing but its own is like a verdict's."""
        since = await self._keeper.recorded_since(case.recognised)
        prepared = prepared_in(since, base.view.transcript.digests, base.applied)
        return any(verdict is None or each.trigger == JUDGED for each in prepared)


def _may_prepare(case: Case) -> bool:
    pipeline = case.policy.pipeline
    changes = not (pipeline.is_off or pipeline.observe)
    return changes and case.keeps and case.policy.asks and case.policy.budget is not None


def _may_be_due(view: View, case: Case) -> bool:
    """Whether anything can be due for a mark; mostly nothing is, and that is seen without a task."""
    policy, budget = case.policy, case.policy.budget
    if budget is None or not policy.prepares:
        return False
    return view.tokens >= budget.prepare or any(due(stage, view, budget) for stage in policy.stages)


def _is_due(base: Replayed, case: Case, budget: Budget, waiting: Replayed | None) -> bool:
    """Whether a view should have a condensation ready: by a stage's own trigger, or past the mark and a step later.

    One that waits is enough while its view would be below the mark; then another takes its place.
    """
    tokens = base.view.tokens
    if waiting is not None and waiting.applied is not None:
        is_past = waiting.view.tokens >= budget.prepare
        return is_past and is_time(_PREPARE, tokens, budget, waiting.applied.tokens_before)
    # After one that asked no model and left the view past the mark, one that asks has no growth to wait for.
    since = base.applied.tokens_after if base.applied and base.applied.own_tokens else None
    past_mark = tokens >= budget.prepare and is_time(_PREPARE, tokens, budget, since)
    return past_mark or any(due(stage, base.view, budget) for stage in case.policy.stages)


def _goes_on(tried: Tried | None, now: Tried, budget: Budget) -> bool:
    """Whether a branch has changed by a step since it was last tried: what failed is not tried again every turn."""
    if tried is None or now.applied != tried.applied or now.tokens < tried.tokens:
        return True
    return now.tokens - tried.tokens >= budget.step or now.messages >= tried.messages * (1 + budget.marks.step)
