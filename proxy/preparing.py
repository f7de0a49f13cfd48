"""Preparation: what is done for the next request once this one has its reply.

Past the `prepare` mark a condensation is made while nobody waits, and kept as prepared: the first request that needs
it takes it. Under a strategy that judges, votes are held first, and a YES has its condensation prepared at once. There
is one piece of such work at a time for each branch. A request that must be condensed now waits for it rather than
starting another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from proxy.decision import Action, Decision
from proxy.intake import Case
from proxy.judging import Judges
from proxy.keeping import Keeper
from proxy.leases import Leases
from proxy.lru import Lru
from proxy.making import Maker, base_of, readable, work_name
from proxy.offload import offloaded
from proxy.owned import OwnedTasks
from proxy.sessions import branch_name
from proxy.store.codec import encode_condensation
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.protocol import Verdict
from strategies.core.ready import prepared_in, ready
from strategies.core.replay import Replayed
from strategies.core.requirement import RULES, Requirement, is_time
from strategies.pipeline import due

_REMEMBERED = 10_000
_PREPARE = Requirement.PREPARE

Background = OwnedTasks[Condensation | None]


class Tried(NamedTuple):
    """Where a branch's last preparation began: the condensation it rested on, and its size."""

    applied: str
    tokens: int
    messages: int


class Preparer:
    """Prepares condensations; one per app."""

    def __init__(
        self,
        *,
        maker: Maker,
        judges: Judges,
        keeper: Keeper,
        leases: Leases,
        tasks: Background,
        clock: Callable[[], float],
    ) -> None:
        self._maker = maker
        self._judges = judges
        self._keeper = keeper
        self._leases = leases
        self._tasks = tasks
        self._clock = clock
        self._tried: Lru[Hashable, Tried] = Lru(_REMEMBERED)

    def follow(self, decision: Decision, case: Case) -> None:
        """Starts what a request that has its reply makes due."""
        if case.policy.prepares and _may_prepare(case):
            self._tasks.start(self._work(decision, case.apart(), background=True), (case.found.key, decision.branch))

    async def ahead(self, decision: Decision, case: Case, deadline: float) -> list[Condensation]:
        """What votes that are held before forwarding lead to, until a time of the loop's clock."""
        stage, key = case.policy.judging, (case.found.key, _branch(case))
        if stage is None or not stage.inline or not _may_prepare(case) or await self._skips(decision, case):
            return []
        self._tasks.start(self._work(decision, case, background=False), key)
        return await self._landed(key, deadline)

    async def landed(self, case: Case, deadline: float) -> list[Condensation]:
        """What a preparation for this branch leads to that is under way here or elsewhere, until a time of the loop's
        clock."""
        if not _may_prepare(case):
            return []
        here = await self._landed((case.found.key, _branch(case)), deadline)
        return here or await self._left_elsewhere(case, deadline)

    async def _landed(self, key: Hashable, deadline: float) -> list[Condensation]:
        made = await self._tasks.landed(key, deadline)
        return [made] if made is not None else []

    async def _left_elsewhere(self, case: Case, deadline: float) -> list[Condensation]:
        """What another replica prepares for the head that this branch had with its last request."""
        branch = case.branch
        if branch is None or not case.policy.prepares:
            return []
        async with self._leases.turn(
            case.request.tenant,
            work_name(Requirement.PREPARE, branch.head, branch.applied, case),
            deadline,
            case.found.patience,
        ) as turn:
            left = readable(turn.left)
        return [left] if left is not None else []

    async def state(self, decision: Decision, case: Case) -> Mapping[str, Any]:
        """The state of judgement as this request leaves it; empty where nobody judges."""
        stage = case.policy.judging
        if stage is None or not _may_prepare(case):
            return {}
        return stage.state(decision.view, case.past(self._clock()), await self._skips(decision, case))

    async def _skips(self, decision: Decision, case: Case) -> str:
        stage, budget = case.policy.judging, case.policy.budget
        if stage is None or budget is None:
            return "no-judge"
        if decision.action is Action.CONDENSED:
            return "cool-down"
        messages = len(decision.view.transcript.chain)
        return await offloaded(messages, stage.skips, decision.view, budget, case.past(self._clock()))

    async def _work(self, decision: Decision, case: Case, *, background: bool) -> Condensation | None:
        stage = case.policy.judging
        if stage is not None and stage.inline is not background and not await self._skips(decision, case):
            held = await self._judges.vote(stage, decision.view, case, case.caller(background=background))
            if held.verdict is not None and held.verdict.yes:
                preparing = case.apart() if background else case
                return await self._prepared(base_of(decision), preparing, held.verdict, background=background)
        budget = case.policy.budget
        return await self._for_a_mark(decision, case, budget) if background and budget is not None else None

    async def _for_a_mark(self, decision: Decision, case: Case, budget: Budget) -> Condensation | None:
        # What would save too little to be taken at the trigger must not keep a better one from being made.
        shrink = RULES[Requirement.SOFT].least_shrink
        waiting = ready(decision.view, decision.applied, case.found.condensations, budget, least_shrink=shrink)
        resting = decision.applied.id if decision.applied else ""
        now = Tried(resting, decision.view.tokens, decision.view.size)
        if not (
            _is_due(decision, case, budget, waiting) and self._tries((case.found.key, decision.branch), now, budget)
        ):
            return None
        return await self._prepared(waiting or base_of(decision), case, None, background=True)

    def _tries(self, key: Hashable, now: Tried, budget: Budget) -> bool:
        """Whether a branch has changed enough since it was last tried to be tried again, which is noted."""
        if not _goes_on(self._tried.get(key), now, budget):
            return False
        self._tried.put(key, now)
        return True

    async def _prepared(
        self, base: Replayed, case: Case, verdict: Verdict | None, *, background: bool
    ) -> Condensation | None:
        head, resting = base.view.transcript.digests[-1], base.applied.id if base.applied else ""
        work, now = work_name(Requirement.PREPARE, head, resting, case), asyncio.get_running_loop().time()
        async with self._leases.turn(case.request.tenant, work, now, case.found.patience) as turn:
            if not turn.held or prepared_in(await self._keeper.recorded_since(case.found), *_reach(base)):
                return None
            made = await self._maker.prepare(base, case, case.caller(background=background), verdict)
            turn.leaves = encode_condensation(made.condensation) if made.condensation else b""
        if made.own_tokens:
            await self._keeper.amend(case.found, lambda session: session.counted(own_tokens=made.own_tokens))
        return made.condensation


def _may_prepare(case: Case) -> bool:
    pipeline = case.policy.pipeline
    changes = not (pipeline.is_off or pipeline.observe)
    return changes and case.keeps and case.policy.asks and case.policy.budget is not None


def _branch(case: Case) -> str:
    return case.branch.name if case.branch else branch_name(1)


def _reach(base: Replayed) -> tuple[Sequence[bytes], Condensation | None]:
    return base.view.transcript.digests, base.applied


def _is_due(decision: Decision, case: Case, budget: Budget, waiting: Replayed | None) -> bool:
    """Whether a view should have a condensation ready: by a stage's own trigger, or past the mark and a step later."""
    tokens = decision.view.tokens
    if waiting is not None and waiting.applied is not None:
        return tokens >= budget.prepare and is_time(_PREPARE, tokens, budget, waiting.applied.tokens_before)
    since = decision.applied.tokens_after if decision.applied else None
    past_mark = tokens >= budget.prepare and is_time(_PREPARE, tokens, budget, since)
    return past_mark or any(due(stage, decision.view, budget) for stage in case.policy.stages)


def _goes_on(tried: Tried | None, now: Tried, budget: Budget) -> bool:
    """Whether a branch has changed by a step since it was last tried: what failed is not tried again every turn."""
    if tried is None or now.applied != tried.applied or now.tokens < tried.tokens:
        return True
    return now.tokens - tried.tokens >= budget.step or now.messages >= tried.messages * (1 + budget.marks.step)
