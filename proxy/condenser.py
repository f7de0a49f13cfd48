"""The driver: one request from its parsed body to the bytes that are forwarded.

    take in    transcript, counts, session, strategy, window, budget       (proxy/intake.py)
    replay     fold the transcript with the condensation that stands       (strategies/core/replay.py)
    require    must the view be condensed, and at what price               (strategies/core/requirement.py)
    make       run the pipeline in the time given; record what comes of it (proxy/making.py, proxy/attempts.py)
    forward    splice the view into the body                               (proxy/wire.py)

It is the only caller of a strategy. Whatever of ours fails, the request goes on with what is there: a view that
could not be condensed is sent as it is, a store that is out is replaced by the walk. The only refusal is of a
request that no upstream could serve, with an account of where its tokens are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from proxy.account import account
from proxy.decision import Action, Decision, Timing, Trigger
from proxy.errors import ContextLengthExceeded
from proxy.intake import Case, ChatRequest, Intake, milliseconds
from proxy.keeping import Keeper, Turn, is_small
from proxy.making import TRIGGERS, Maker
from proxy.preparing import Preparer
from proxy.reasons import Reason
from proxy.store.base import StoreError
from strategies.core.condensation import Condensation
from strategies.core.ready import JUDGED, ready
from strategies.core.replay import Replayed, replay
from strategies.core.requirement import RULES, Requirement, has_grown, required
from strategies.core.view import View, fold
from strategies.pipeline import due
from strategies.walk import walk

EXACT_ERROR = 0.10
ESTIMATE_ERROR = 0.25


class Condenser:
    """Decides on requests; one per app."""

    def __init__(
        self,
        *,
        intake: Intake,
        keeper: Keeper,
        maker: Maker,
        preparer: Preparer,
        inline_timeout: float,
    ) -> None:
        self._preparer = preparer
        self._inline_timeout = inline_timeout
        self._intake = intake
        self._keeper = keeper
        self._maker = maker

    async def decide(self, request: ChatRequest) -> Decision:
        """The decision for a request; raises `BadRequest` and `ContextLengthExceeded` only."""
        timing = Timing()
        case = await self._intake.case(request, timing)
        started = perf_counter()
        decision = await self._decided(case)
        rewritten = decision.view.changed or case.is_rewritten
        decision.body = request.body.spliced(
            messages=decision.view.encoded() if rewritten else None,
            model=request.model if request.renamed else None,
        )
        timing.condense = milliseconds(started)
        decision.timing = timing
        self._prepare_to_settle(decision, case)
        return decision

    async def _decided(self, case: Case) -> Decision:
        decision = _undecided(case)
        pipeline = case.policy.pipeline
        if pipeline.is_off:
            decision.reason = Reason.STRATEGY_OFF
        elif pipeline.observe:
            await self._observe(decision, case)
        elif case.found.failure:
            _walk(decision, case)
        else:
            _replay(decision, case)
            await self._condense(decision, case)
        return decision

    async def _condense(self, decision: Decision, case: Case) -> None:
        deadline = asyncio.get_running_loop().time() + self._inline_timeout
        only_looks = case.request.controls.dry_run
        if not only_looks:
            case = case.knowing(await self._preparer.ahead(decision, case, deadline))
        requirement = _requirement(decision, case)
        if requirement is not None and await self._took_ready(requirement, decision, case, deadline):
            requirement = _still_required(decision)
        if requirement is None:
            return
        if requirement is Requirement.SOFT and all(stage.asks for stage in case.policy.stages):
            decision.reason = Reason.AWAITING_VERDICT if case.policy.judging else Reason.NOT_PREPARED
            return
        if only_looks:
            made = await self._maker.project(requirement, decision, case)
        else:
            made = await self._maker.make(requirement, decision, case, deadline)
        decision.own_tokens, decision.reason = made.own_tokens, made.reason
        if made.condensation is not None:
            _apply(decision, made.condensation, case)
        if made.failure:
            decision.action, decision.reason = Action.DEGRADED, made.failure
        _refuse_if_hopeless(decision)

    async def _took_ready(self, requirement: Requirement, decision: Decision, case: Case, deadline: float) -> bool:
        """Whether a condensation that was prepared is this request's view now.

        Where a model may be asked, a preparation that is under way is waited for.
        """
        found = _ready(requirement, decision, case)
        may_wait = RULES[requirement].asks and not case.request.controls.dry_run
        if found is None and may_wait:
            # Half of the time is left for a question of our own: a preparation may wait for its turn in the background.
            case = case.knowing(await self._preparer.landed(case, deadline - self._inline_timeout / 2))
            found = _ready(requirement, decision, case)
        if found is None or found.applied is None:
            return False
        applied = self._drifted(found.view, found.applied, case) or found.applied
        _apply(decision, applied, case, TRIGGERS[requirement])
        if case.keeps:
            await self._stand(decision, applied, case, is_new=applied is not found.applied)
        return True

    def _drifted(self, view: View, judged: Condensation, case: Case) -> Condensation | None:
        """What a judged record becomes where the judge wants that dropped which came since; None where it stands."""
        stage = case.policy.judging
        after = stage.drifted(view) if stage is not None and judged.trigger == JUDGED else None
        return None if after is None else self._maker.reaching(judged, after)

    async def _stand(self, decision: Decision, condensation: Condensation, case: Case, *, is_new: bool) -> None:
        try:
            if is_new:
                _apply(decision, await self._keeper.keep(case.found, condensation), case)
            else:
                await self._keeper.stand(case.found, condensation)
        except StoreError as error:
            decision.action, decision.reason = Action.DEGRADED, error.reason

    async def _observe(self, decision: Decision, case: Case) -> None:
        """Says what would be done; changes nothing."""
        requirement = _requirement(decision, case)
        if requirement is None:
            return
        made = await self._maker.project(requirement, decision, case)
        decision.reason = made.reason
        if made.condensation is not None:
            decision.action, decision.trigger = Action.WOULD_CONDENSE, TRIGGERS[requirement]
            decision.tokens_after = _folded(case, made.condensation).tokens
            decision.exact = decision.exact and not made.asked
            decision.metadata = made.condensation.metadata

    def _prepare_to_settle(self, decision: Decision, case: Case) -> None:
        """Names the branch, and leaves a way to store the session once the upstream has answered."""
        found = case.found
        turn = Turn(
            case.history,
            dict(case.policy.sticks),
            decision.tokens_before,
            decision.tokens_after,
            decision.own_tokens,
            _applied(decision, case),
        )
        if not case.history.chain:
            return
        session, decision.branch = self._keeper.next(found, turn)
        is_new = found.is_derived and found.session is None
        if is_new and decision.applied is None and is_small(decision.tokens_before, case.policy.window.tokens):
            return
        if not case.keeps:
            return
        decision.session = session.id
        decision.head = case.append.head if case.append else ""

        async def settle(reply: Mapping[str, Any] | None) -> None:
            judged = replace(turn, judging=self._preparer.state(decision, case))
            if case.append is None:
                await self._keeper.settle(found, judged)
            elif reply is not None:
                line, block = case.append.block(reply)
                appended = replace(judged, line=line, before=case.append.before, blocks={line.block: block})
                await self._keeper.settle(found, appended)

        decision.settle = settle
        decision.follow = lambda: self._preparer.follow(decision, case)


def _apply(decision: Decision, condensation: Condensation, case: Case, trigger: Trigger | None = None) -> None:
    """Makes a condensation this request's view; `trigger` is what it was needed for, where no judge wanted it."""
    judged = condensation.trigger == JUDGED
    decision.action = Action.CONDENSED
    decision.trigger = Trigger(condensation.trigger) if judged or trigger is None else trigger
    decision.applied, decision.metadata = condensation, condensation.metadata
    decision.view = _folded(case, condensation)
    decision.tokens_after = decision.view.tokens


def _undecided(case: Case) -> Decision:
    found, measured = case.found, case.measured
    decision = Decision(
        session=found.shown,
        source=found.identity.source,
        branch="main",
        policy=case.policy,
        view=_folded(case, None),
        tokens_before=measured.tokens,
        tokens_after=measured.tokens,
        exact=measured.exact,
        tools=measured.overhead,
    )
    if found.failure:
        decision.action, decision.reason = Action.DEGRADED, found.failure
    return decision


def _folded(case: Case, condensation: Condensation | None) -> View:
    overlays = () if condensation is None else (condensation.overlay,)
    return fold(case.measured.transcript, overlays, case.measured.overhead, case.counter)


def _replay(decision: Decision, case: Case) -> None:
    last = case.found.last_applied(case.history)
    found = replay(
        case.measured.transcript,
        case.found.condensations,
        case.measured.overhead,
        case.counter,
        case.policy.budget,
        last,
    )
    decision.view, decision.applied, decision.tokens_after = found.view, found.applied, found.view.tokens
    if found.applied is not None:
        decision.action = (
            Action.CONDENSED if case.found.session and last not in (None, found.applied.id) else Action.REPLAYED
        )


def _walk(decision: Decision, case: Case) -> None:
    """The view without a store; what it condenses stands in no record."""
    policy = case.policy
    if policy.budget is None:
        return
    decision.view = walk(
        case.measured.transcript, policy.stages, policy.ladder, policy.budget, case.measured.overhead, case.counter
    )
    decision.tokens_after = decision.view.tokens
    failure = decision.reason
    _refuse_if_hopeless(decision)
    decision.reason = failure


def _applied(decision: Decision, case: Case) -> str:
    """What the branch rests on from now on; a request that only looked, or was `off` for once, leaves it as it was."""
    pipeline = case.policy.pipeline
    if decision.applied is None and (pipeline.is_off or pipeline.observe):
        return case.found.last_applied(case.history) or ""
    return decision.applied.id if decision.applied else ""


def _requirement(decision: Decision, case: Case) -> Requirement | None:
    budget = case.policy.budget
    if budget is None:
        decision.reason = Reason.WINDOW_UNKNOWN
        return None
    since = decision.applied.tokens_after if decision.applied else None
    tokens = decision.tokens_after
    own = _is_due(decision, case)
    requirement = required(tokens, budget, since=since, forced=case.request.controls.force, due=own)
    if requirement is None and tokens >= budget.trigger and not has_grown(tokens, budget, since):
        decision.reason = Reason.WAITING_FOR_STEP
    elif requirement is None and (decision.action is Action.PASSED or _news(case)):
        decision.reason = _news(case) or Reason.BELOW_MARKS
    return requirement


def _is_due(decision: Decision, case: Case) -> bool:
    """Whether a judge wants it condensed and that is ready, or a stage has a trigger of its own that is reached."""
    budget = case.policy.budget
    if budget is None:
        return False
    shrink = RULES[Requirement.SOFT].least_shrink
    judged = ready(
        decision.view, decision.applied, case.found.condensations, budget, judged_only=True, least_shrink=shrink
    )
    return judged is not None or any(due(stage, decision.view, budget) for stage in case.policy.stages)


def _ready(requirement: Requirement, decision: Decision, case: Case) -> Replayed | None:
    """What was prepared and may be taken; under a judge the marks alone take nothing."""
    budget = case.policy.budget
    if budget is None:
        return None
    judged_only = requirement is Requirement.SOFT and case.policy.judging is not None
    return ready(
        decision.view,
        decision.applied,
        case.found.condensations,
        budget,
        judged_only=judged_only,
        least_shrink=RULES[requirement].least_shrink,
    )


def _still_required(decision: Decision) -> Requirement | None:
    """What is left to do for a view that has just taken what was ready: only to make it fit."""
    budget = decision.policy.budget
    since = decision.applied.tokens_after if decision.applied else None
    requirement = required(decision.tokens_after, budget, since=since) if budget else None
    return requirement if requirement is Requirement.HARD else None


def _news(case: Case) -> str:
    """What a person should know of how the conversation was recognised."""
    if case.is_aligned:
        return Reason.ALIGNED
    session = case.found.session
    if session is not None and session.branch_of(case.history.digests) is None:
        return Reason.NEW_BRANCH
    return ""


def _refuse_if_hopeless(decision: Decision) -> None:
    """Raises where what is left is larger than the window by more than the count may be wrong."""
    budget = decision.policy.budget
    if budget is None:
        return
    error = EXACT_ERROR if decision.exact else ESTIMATE_ERROR
    if decision.view.tokens > budget.window * (1 + error):
        raise ContextLengthExceeded(account(decision), param="messages")
    if decision.view.tokens > budget.usable:
        decision.reason = decision.reason or Reason.IRREDUCIBLE
