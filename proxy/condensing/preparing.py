"""Preparation: prepares for the next request once this one has its reply.

Past the `prepare` mark a condensation is made while no request waits, and recorded as prepared; the first request that
needs it applies it. Under a strategy that judges, votes are held first, and after a YES a condensation is prepared at
once. If no votes are held, the session records why, for people to read. Each branch has one such task at a time. A
request that must be condensed now waits for that task instead of starting another.

One round of votes is held at a time for each chain, in this process and across replicas. Its tokens count towards the
session's allowance (`allowance_left`). A round is held while any allowance is left, even if the
round costs more: otherwise five votes on a fifth of a window would never be held.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import uuid4

from proxy.asking import Caller
from proxy.asking.dispatch import PAUSED, PREEMPTED
from proxy.condensing.making import Maker, PipelineRunner, RunResult, branch_key, caller_of, shared_id
from proxy.condensing.reasoning import fold_view
from proxy.condensing.traits import failed_try
from proxy.condensing.traits.failed_try import FailedTry
from proxy.condensing.turn import Decision, RequestContext
from proxy.conversations.keeping import Keeper
from proxy.conversations.session import Session
from proxy.conversations.stored import StoredSessions
from proxy.reasons import Action
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import OwnedTasks, message_load, offload
from proxy.store.base import StoreError
from strategies.core.budget import Budget
from strategies.core.condensation import JUDGED, Condensation, Replayed, best_prepared, prepared_in
from strategies.core.effects import JUDGE, SUMMARIZER
from strategies.core.protocol import Judging, Verdict
from strategies.core.requirement import RULES, Requirement, may_be_raised
from strategies.core.view import View
from strategies.pipeline import is_due

TTL = 120.0
"""Seconds that a claim lasts: more than most calls of a model take. The next turn of a session claims its work anew."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims: of several replicas that would start the same background work, one does.

    A claim is one conditional write that expires. Nothing depends on it: the first writer of a record decides what
    counts, so a claim that is lost or expires too early costs a second call of a model and nothing else. No request
    waits for one.

    These are those of one replica; `_stored` bounds the store calls.
    """

    _stored: StoredSessions
    _holder: str = field(default_factory=lambda: uuid4().hex)
    _under_way: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def taken(self, work: str, context: RequestContext) -> AsyncIterator[bool]:
        """Whether the caller may do the background work with this id while the context is open.

        Not if it is under way here or claimed by another replica, and not if the store fails, because that could not
        take the result either. A replica may repeat its own ended work, such as for a client that sends again.
        """
        if not context.request.trust.accepted:
            # Nothing is written for a caller that the upstream has not accepted yet.
            yield True
        elif work in self._under_way:
            yield False
        else:
            self._under_way.add(work)
            try:
                yield await self._claim(work, context)
            finally:
                self._under_way.discard(work)

    async def _claim(self, work: str, context: RequestContext) -> bool:
        claiming = self._stored.store.claim(context.request.tenant, work, self._holder, TTL)
        try:
            return await self._stored.write(claiming, context.recognised.patience)
        except StoreError as error:
            self._stored.outage.failed("background work was not claimed, and so not started", error)
            return False


MAX_HELD = 16 * 1024 * 1024
"""Approximate bytes of memory that unfinished background work may hold; beyond that none is started."""
_MEMORY_PER_BYTE = 8  # bytes of memory that a piece of work takes for one byte of its request
_WORK_BYTES = 64 * 1024  # bytes of memory that a piece of work takes in addition
_REMEMBERED = 2_000  # how many branches' last failed try is remembered
_PREPARE = Requirement.PREPARE
RECORD_FAILED = "record-failed"
NO_ALLOWANCE = "allowance"
HELD_ELSEWHERE = "held-elsewhere"

_log = logging.getLogger(__name__)


class VoteRound(NamedTuple):
    """The result of a round of votes: a verdict, or the reason why there is none, and the tokens that it cost."""

    verdict: Verdict | None
    skip_reason: str = ""
    tokens: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Preparer:
    """Holds votes and prepares condensations; one per app.

    `counted` counts the tokens of a request that were estimated by length. `allowance` is a share of the session's
    forwarded prompt tokens.
    """

    maker: Maker
    runner: PipelineRunner
    keeper: Keeper
    claims: Claims
    tasks: OwnedTasks
    counted: Callable[[RequestContext], Awaitable[RequestContext]]
    clock: Callable[[], float]
    allowance: float
    _failed_tries: Lru[Hashable, FailedTry] = field(default_factory=lambda: Lru(_REMEMBERED), init=False)
    _held: int = field(default=0, init=False)

    def follow_up(self, decision: Decision) -> None:
        """Starts the work that has become due with a request, once its reply has been sent."""
        context = decision.context
        if not _may_begin(decision):
            return
        if context.policy.judging is not None or _may_be_due(decision.view, context):
            later = decision._replace(body=b"", context=context.with_fresh_patience())
            self.tasks.start(self._run_if_room(later), branch_key(context))

    async def _run_if_room(self, decision: Decision) -> Condensation | None:
        """Runs in the background, unless other work holds too much memory; then a later request makes it due again."""
        size = decision.context.request.body.size * _MEMORY_PER_BYTE + _WORK_BYTES
        if self._held and self._held + size > MAX_HELD:
            return None
        self._held += size
        try:
            return await self._run(decision, background=True)
        finally:
            self._held -= size

    async def vote_before_forwarding(self, decision: Decision, deadline: float) -> Condensation | None:
        """The condensation that results from votes before forwarding, if there is one.

        It is waited for until `deadline`, a time of the event loop's clock.
        """
        context, stage = decision.context, decision.context.policy.judging
        if stage is None or not stage.inline or not _may_begin(decision):
            return None
        if await self._why_no_vote(stage, decision) or self.runner.is_hopeless(
            JUDGE, context.policy, caller_of(context, background=False), deadline
        ):
            return None
        self.tasks.start(self._run(decision, background=False), branch_key(context))
        prepared: Condensation | None = await self.tasks.result_of(branch_key(context), deadline)
        return prepared

    async def wait_for_preparation(self, context: RequestContext, deadline: float) -> Condensation | None:
        """The condensation that results from a preparation under way for this branch, if there is one.

        It is waited for until `deadline`, a time of the event loop's clock.
        """
        caller = caller_of(context, background=False)
        if not _may_prepare(context) or self.runner.is_hopeless(
            SUMMARIZER, context.policy, caller, deadline, joins=True
        ):
            return None
        prepared: Condensation | None = await self.tasks.result_of(branch_key(context), deadline)
        return prepared

    async def _why_no_vote(self, stage: Judging, decision: Decision) -> str:
        """Why no votes are held for a decision; "" if they are."""
        context = decision.context
        if decision.action is Action.CONDENSED:
            return "cool-down"
        if any(failed.reason for failed in self._recent_failures(decision)):
            return RECORD_FAILED
        view = decision.view
        load = message_load(len(view.transcript.chain), view.tokens)
        return await offload(load, stage.skip_reason, view, context.budget, context.session_facts(self.clock()))

    async def _run(self, decision: Decision, *, background: bool) -> Condensation | None:
        stage, prepares, verdict = decision.context.policy.judging, decision.context.policy.prepares, None
        if stage is not None:
            if decision.context.is_estimated and not await self._why_no_vote(stage, decision):
                # Estimates by length are too coarse for a vote.
                context = await self.counted(decision.context)
                decision = decision._replace(context=context, view=fold_view(context, decision.applied))
            verdict = await self._verdict(stage, decision, background=background)
            verdict = verdict or self._verdict_to_retry(decision)
        if verdict is not None and verdict.yes:
            if background:
                decision = decision.in_context(decision.context.with_fresh_patience())
            return await self._prepare(decision, verdict, background=background)
        if not (background and prepares) or self._recent_failures(decision) or not _needs_preparation(decision):
            return None
        return await self._prepare(decision)

    async def _verdict(self, stage: Judging, decision: Decision, *, background: bool) -> Verdict | None:
        """The verdict of the judges; in the background, if there is none, the session records why."""
        vote_round = VoteRound(None, await self._why_no_vote(stage, decision))
        holds = stage.inline is not background and (decision.context.policy.prepares or not background)
        if holds and not vote_round.skip_reason:
            vote_round = await self.vote(stage, decision, background=background)
        if vote_round.verdict is None and background:
            await self._store_verdict(stage, vote_round, decision)
        return vote_round.verdict

    async def vote(self, stage: Judging, decision: Decision, *, background: bool) -> VoteRound:
        """Holds a round of votes on a view, and stores its verdict in the session; raises nothing."""
        context = decision.context
        if stage.is_bound and allowance_left(context, self.allowance) <= 0:
            return VoteRound(None, NO_ALLOWANCE)
        work = shared_id(context, "vote", decision.view.transcript.digests[-1], decision.base.applied_id)
        async with self.claims.taken(work, context) as is_ours:
            if not is_ours:
                return VoteRound(None, HELD_ELSEWHERE)
            caller = caller_of(context, self.tasks, background=background)
            vote_round = await self._ask_judges(stage, decision.view, context, caller)
        if vote_round.verdict is not None:
            await self._store_verdict(stage, vote_round, decision)
        return vote_round

    async def _ask_judges(self, stage: Judging, view: View, context: RequestContext, caller: Caller) -> VoteRound:
        polling = stage.judge(view, context.budget, context.session_facts(self.clock()))
        try:
            verdict, tokens = await self.runner.ask_judges(polling, view, context, caller)
        except Exception:  # noqa: BLE001
            # A defect in a judge costs its verdict, nothing else.
            _log.exception("a judge failed")
            return VoteRound(None, "internal-error")
        if verdict.failure and not verdict.failure.endswith((PAUSED, PREEMPTED)):
            _log.warning("judges gave no verdict: %s", verdict.failure)
        return VoteRound(verdict, verdict.failure, tokens)

    async def _store_verdict(self, stage: Judging, vote_round: VoteRound, decision: Decision) -> None:
        """Stores in the session a verdict on a view, or why there is none; a missing verdict creates no session."""
        verdict, skip_reason, tokens = vote_round
        view, facts = decision.view, decision.context.session_facts(self.clock())

        def change(session: Session) -> Session:
            verdicts = session.verdicts if verdict is None else (*session.verdicts, verdict)
            state = stage.state(view, replace(facts, verdicts=verdicts), skip_reason)
            if verdict is None:
                return session._replace(judging=state)
            return session.with_totals(own_tokens=tokens, judge_tokens=tokens, votes=1).with_verdict(verdict, state)

        await self.keeper.amend(decision.context.recognised, change, creates=verdict is not None)

    def _failures(self, context: RequestContext) -> list[FailedTry]:
        """The last failed tries of this branch: the one that this process knows, and the one in the session."""
        session = context.recognised.session
        stored = failed_try.TRAIT.of(session) if session else None
        known = (
            self._failed_tries.get(branch_key(context)),
            stored if stored and stored.branch == context.branch_name else None,
        )
        return [failed for failed in known if failed is not None]

    def _recent_failures(self, decision: Decision) -> list[FailedTry]:
        """The failed tries since which the branch has not changed enough for another."""
        base, budget = decision.base, decision.context.budget
        return [each for each in self._failures(decision.context) if not _has_changed_enough(each, base, budget)]

    def _verdict_to_retry(self, decision: Decision) -> Verdict | None:
        """The last verdict, if it stands, was a YES, its record failed, and the view has since grown by a step."""
        context, base = decision.context, decision.base
        session = context.recognised.session
        if session is None or decision.action is Action.CONDENSED:
            return None
        failed = [failed for failed in self._failures(context) if failed.judged and failed.applied == base.applied_id]
        if not failed or self._recent_failures(decision):
            return None
        digests = base.view.transcript.digests
        last = next((verdict for verdict in reversed(session.verdicts) if verdict.applies_to(digests)), None)
        return last if last is not None and last.yes else None

    async def _prepare(
        self, decision: Decision, verdict: Verdict | None = None, *, background: bool = True
    ) -> Condensation | None:
        context, base = decision.context, decision.base
        work = shared_id(context, _PREPARE.value, base.view.transcript.digests[-1], base.applied_id)
        async with self.claims.taken(work, context) as is_ours:
            if not is_ours or await self._is_prepared_already(decision, verdict):
                return None
            result = await self.maker.prepare(decision, verdict, background=background)
        await self._store_outcome(result, decision, verdict)
        return result.condensation

    async def _is_prepared_already(self, decision: Decision, verdict: Verdict | None) -> bool:
        """Whether such a condensation has been prepared since the session was read.

        If there is a verdict, only a judged condensation counts.
        """
        since = await self.keeper.recorded_since(decision.context.recognised)
        prepared = prepared_in(since, decision.view.transcript.digests, decision.applied)
        return any(verdict is None or record.trigger == JUDGED for record in prepared)

    async def _store_outcome(self, result: RunResult, decision: Decision, verdict: Verdict | None) -> None:
        """Counts the cost of a preparation; records a failure in the session and in the log."""
        context, base = decision.context, decision.base
        session, stored, made = context.recognised.session, None, result.condensation
        reason = result.reason if result.asked_model or (made is None and verdict is not None) else ""
        if reason and not reason.endswith((PAUSED, PREEMPTED)):
            told = (" by a model" if made else "") + (" after a YES" if verdict else "")
            _log.warning("preparing a condensation%s failed: %s", told, reason)
        if made is None:
            at = self.clock()
            failed = FailedTry(base.applied_id, base.view.tokens, reason, verdict is not None, context.branch_name, at)
            self._failed_tries.put(branch_key(context), failed)
            if reason:
                stored = failed
        had_failed = session is not None and failed_try.TRAIT.of(session) is not None
        if result.own_tokens or stored or had_failed:
            await self.keeper.amend(
                context.recognised,
                lambda session: failed_try.TRAIT.put(session.with_totals(own_tokens=result.own_tokens), stored),
            )


def allowance_left(context: RequestContext, share: float) -> int:
    """Tokens of the session's allowance that its votes have left; negative if they overspent.

    Votes may spend the window and a `share` of what the session forwards.
    """
    window = context.policy.budget.window if context.policy.budget else 0
    forwarded = context.recognised.spent("forwarded_tokens") + context.history.sent.tokens
    return int(window + share * forwarded) - context.recognised.spent("judge_tokens")


def _may_begin(decision: Decision) -> bool:
    """Whether work for the next request may begin: not for what is asked aside, nor after a person reverted some."""
    context = decision.context
    return _may_prepare(context) and not context.is_held_back(decision.applied) and context.aside is None


def _may_prepare(context: RequestContext) -> bool:
    policy = context.policy
    return policy.rewrites and context.may_store and policy.asks_models and policy.budget is not None


def _may_be_due(view: View, context: RequestContext) -> bool:
    """Whether anything may be due: a cheap check, so that most requests start no task."""
    policy, budget = context.policy, context.budget
    return policy.prepares and (
        view.tokens >= budget.prepare or any(is_due(stage, view, budget) for stage in policy.stages)
    )


def _needs_preparation(decision: Decision) -> bool:
    """Whether a condensation should be prepared for a view: at a stage's own trigger, or past `prepare` and a step.

    An earlier prepared condensation is enough while its view would be below the mark; after that another replaces it.
    One that would save too little to be applied at the trigger does not prevent a better one.
    """
    base, context = decision.base, decision.context
    tokens, budget, shrink = base.view.tokens, context.budget, RULES[Requirement.SOFT].least_shrink
    prepared = best_prepared(base.view, base.applied, context.recognised.condensations, budget, least_shrink=shrink)
    if prepared is not None and prepared.applied is not None:
        is_past = prepared.view.tokens >= budget.prepare
        return is_past and may_be_raised(_PREPARE, tokens, budget, prepared.applied.tokens_before)
    # If the last condensation asked no model and left the view past the mark, one that asks need not wait for growth.
    since = base.applied.tokens_after if base.applied and base.applied.own_tokens else None
    past_mark = tokens >= budget.prepare and may_be_raised(_PREPARE, tokens, budget, since)
    return past_mark or any(is_due(stage, base.view, budget) for stage in context.policy.stages)


def _has_changed_enough(failed: FailedTry, base: Replayed, budget: Budget) -> bool:
    """Whether a branch has another base than when it failed, or has grown by a step."""
    tokens = base.view.tokens
    return base.applied_id != failed.applied or tokens < failed.tokens or tokens - failed.tokens >= budget.step
