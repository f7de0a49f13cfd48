"""The driver: one request from its parsed body to the bytes that are forwarded.

    take in    transcript, counts, session, strategy, window, budget       (proxy/request/intake.py)
    replay     fold the transcript with the condensation that stands       (strategies/core/replay.py)
    require    must the view be condensed, and at what price               (strategies/core/requirement.py)
    make       run the pipeline in the time given; record what comes of it (proxy/condensing/making.py, attempts.py)
    forward    splice the view into the body                               (proxy/request/wire.py)
    settle     learn from the reply, store the session before its last byte (proxy/condensing/settling.py)

It is the only caller of a strategy. Whatever of ours fails, the request goes on with what is there: a view that
could not be condensed is sent as it is, a store that is out is replaced by the walk, and a request that a defect has
kept from being decided on is forwarded as it came. The only refusal is of a request that no upstream could serve, with
an account of where its tokens are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import perf_counter

from proxy.condensing.decision import Action, Decision, Timing, Trigger, trigger_of
from proxy.condensing.making import TRIGGERS, Maker
from proxy.condensing.policy import Policy
from proxy.condensing.preparing import Preparer
from proxy.condensing.requiring import (
    floor_under,
    needed,
    not_ready,
    still_required,
    waits_to_pay_back,
    what_is_ready,
)
from proxy.condensing.settling import Settler
from proxy.condensing.token_account import account
from proxy.condensing.undecided import as_it_came, folded, undecided
from proxy.condensing.viewing import is_first_of_a_truncated_window, probes, spliced, walked
from proxy.errors import ContextLengthExceeded, ProxyError
from proxy.learning.profiles import Profile
from proxy.memory.inject import with_standing_block
from proxy.memory.searching import Memories
from proxy.reasons import Reason
from proxy.request.intake import Case, ChatRequest, Intake, milliseconds
from proxy.sessions.keeping import Keeper
from proxy.settings import Settings
from proxy.store.base import StoreError
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.ready import JUDGED
from strategies.core.replay import replay
from strategies.core.requirement import RULES, Requirement, required
from strategies.core.view import View

_log = logging.getLogger(__name__)

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
        settler: Settler,
        memories: Memories,
        settings: Settings,
    ) -> None:
        self._cache_lifetime = settings.cost.cache_lifetime
        self._usage_probe = settings.usage_probe
        self._inline_timeout = settings.inline_timeout
        self._preparer = preparer
        self._settler = settler
        self._memories = memories
        self._intake = intake
        self._keeper = keeper
        self._maker = maker

    async def decide(self, request: ChatRequest) -> Decision:
        """The decision for a request; raises `ProxyError` only, but for a dry run: there a defect is all the answer."""
        timing = Timing()
        try:
            decision = await self._answered(request, timing)
        except Exception as error:
            if isinstance(error, ProxyError) or request.controls.dry_run:
                raise
            _log.exception("a request was not taken in")
            decision = as_it_came(request)
        decision.timing = timing
        return decision

    async def _answered(self, request: ChatRequest, timing: Timing) -> Decision:
        case = with_standing_block(await self._intake.case(request, timing))
        started = perf_counter()
        decision = await self._served(case)
        self._write(decision, case)
        timing.condense = milliseconds(started)
        decision.timing = timing
        self._prepare_to_send(decision, case)
        return decision

    def _prepare_to_send(self, decision: Decision, case: Case, *, is_last: bool = False) -> None:
        """Leaves ways to take in what comes of a decision: a usage, a whole reply, or a refusal.

        In whatever form the `is_last` one is sent, no smaller view follows on it.
        """
        self._settler.prepare(decision, case)
        pipeline = case.policy.pipeline
        if not (pipeline.is_off or pipeline.observe):
            if not is_last:
                decision.again = lambda policy, aim: self._again(decision, case, policy, aim)
            decision.reform = lambda profile: self._rewrite_for(decision, case, profile, is_last=is_last)

    def _rewrite_for(self, decision: Decision, case: Case, profile: Profile, *, is_last: bool) -> bool:
        """Writes a decision's view for another profile; whether the upstream gets other bytes by that."""
        before, case = decision.body, case.taken_by(profile)
        transcript = decision.view.transcript.in_form(profile.form)
        decision.policy, decision.view = case.policy, replace(decision.view, transcript=transcript)
        decision.tokens_after = decision.view.tokens
        self._write(decision, case)
        self._prepare_to_send(decision, case, is_last=is_last)
        return decision.body != before

    async def _again(self, refused: Decision, case: Case, policy: Policy, aim: Budget) -> Decision | None:
        """The decision for the same request with a view that is smaller than the refused one; None without one."""
        started = perf_counter()
        policy = policy.scaled(case.calibrated.scale)
        case = case.knowing([refused.applied] if refused.applied else [])._replace(policy=policy)
        again = replace(refused, policy=policy, timing=replace(refused.timing), settle=None, follow=None, again=None)
        await self._shrink(again, case, aim)
        await self._memories.injector.inject(again, case)
        _name_floor(again)
        if again.tokens_after >= refused.tokens_after:
            return None
        self._write(again, case)
        again.timing.condense += milliseconds(started)
        self._prepare_to_send(again, case, is_last=True)
        return again

    async def _shrink(self, decision: Decision, case: Case, budget: Budget) -> None:
        """Condenses a view for OVERFLOW, in what the first decision has left of the time for models."""
        case = case._replace(policy=case.policy._replace(budget=budget))
        if case.recognised.failure:
            decision.view, decision.trigger = walked(case, budget), Trigger.OVERFLOW
            decision.tokens_after = decision.view.tokens
            return
        left = self._inline_timeout - decision.timing.condense / 1000
        deadline = asyncio.get_running_loop().time() + max(left, 0.0)
        took = await self._take_ready(Requirement.OVERFLOW, decision, case, deadline)
        if took and decision.tokens_after < budget.trigger:
            return
        made = await self._maker.make(Requirement.OVERFLOW, decision, case, deadline)
        decision.own_tokens += made.own_tokens
        decision.reason = made.reason
        if made.condensation is not None:
            _apply(decision, made.condensation, case, Trigger.OVERFLOW)
        if made.failure:
            decision.action, decision.reason = Action.DEGRADED, made.failure

    async def _served(self, case: Case) -> Decision:
        """The decision, or where a part of ours has a defect, the transcript as it is: that costs headroom only."""
        try:
            return await self._decided(case)
        except ProxyError:
            raise
        except Exception:  # noqa: BLE001
            _log.exception("a request was not decided on")
        decision = undecided(case)
        decision.action, decision.reason = Action.DEGRADED, Reason.INTERNAL_ERROR
        return decision

    async def _decided(self, case: Case) -> Decision:
        decision = undecided(case)
        pipeline = case.policy.pipeline
        if pipeline.is_off:
            decision.reason = decision.reason or Reason.STRATEGY_OFF
        elif pipeline.observe:
            await self._observe(decision, case)
        elif case.recognised.failure:
            _walk(decision, case)
        else:
            _replay(decision, case)
            await self._condense(decision, case)
            await self._memories.injector.inject(decision, case)
            _name_floor(decision)
            if is_first_of_a_truncated_window(decision, case):
                decision.reason = Reason.SILENT_TRUNCATION
        return decision

    async def _condense(self, decision: Decision, case: Case) -> None:
        deadline = asyncio.get_running_loop().time() + self._inline_timeout
        only_looks = case.request.controls.dry_run
        if not only_looks:
            case = case.knowing(await self._preparer.ahead(decision, case, deadline))
        requirement, reason = needed(decision, case)
        decision.reason = reason or decision.reason
        if requirement is Requirement.SOFT and waits_to_pay_back(decision, case, self._cache_lifetime):
            decision.reason = Reason.AWAITING_PAYBACK
            return
        if requirement is not None and await self._take_ready(requirement, decision, case, deadline):
            requirement = still_required(decision)
        if requirement is None:
            return
        if requirement is Requirement.SOFT and all(stage.asks for stage in case.policy.stages):
            decision.reason = not_ready(case)
            return
        if only_looks:
            made = await self._maker.project(requirement, decision, case)
        else:
            made = await self._maker.make(requirement, decision, case, deadline)
        decision.own_tokens, decision.reason = made.own_tokens, made.reason
        if made.condensation is not None:
            _apply(decision, made.condensation, case)
        elif requirement is Requirement.SOFT and case.policy.asks:
            decision.reason = not_ready(case)
        if made.failure:
            decision.action, decision.reason = Action.DEGRADED, made.failure
        _refuse_if_hopeless(decision)

    async def _take_ready(self, requirement: Requirement, decision: Decision, case: Case, deadline: float) -> bool:
        """Makes a condensation that was prepared this request's view; whether there was one.

        Where a model may be asked, a preparation that is under way is waited for.
        """
        found = what_is_ready(requirement, decision, case)
        may_wait = RULES[requirement].asks and not case.request.controls.dry_run
        if found is None and may_wait:
            # All of the time: what is made once is not asked for again, and then there is no time to ask.
            case = case.knowing(await self._preparer.landed(case, deadline))
            found = what_is_ready(requirement, decision, case)
        if found is None or found.applied is None:
            return False
        applied = self._drifted(found.view, found.applied, case) or found.applied
        _apply(decision, applied, case, TRIGGERS[requirement], ready=True)
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
                _apply(decision, await self._keeper.keep(case.recognised, condensation), case, ready=True)
            else:
                await self._keeper.stand(case.recognised, condensation)
        except StoreError as error:
            decision.action, decision.reason = Action.DEGRADED, error.reason

    async def _observe(self, decision: Decision, case: Case) -> None:
        """Says what would be done; changes nothing."""
        requirement, reason = needed(decision, case)
        decision.reason = reason or decision.reason
        if requirement is None:
            return
        made = await self._maker.project(requirement, decision, case)
        decision.reason = made.reason
        if made.condensation is not None:
            decision.action, decision.trigger = Action.WOULD_CONDENSE, TRIGGERS[requirement]
            decision.tokens_after = folded(case, made.condensation).tokens
            decision.exact = decision.exact and not made.used_model
            decision.metadata = made.condensation.metadata
        elif requirement is Requirement.SOFT and case.policy.asks:
            decision.reason = not_ready(case)

    def _write(self, decision: Decision, case: Case) -> None:
        decision.probed = self._usage_probe and probes(decision.view, case)
        decision.body = spliced(decision.view, case, probe=decision.probed)


def _apply(
    decision: Decision, condensation: Condensation, case: Case, trigger: Trigger | None = None, *, ready: bool = False
) -> None:
    """Makes a condensation this request's view; `trigger` is what it was needed for, where no judge wanted it."""
    judged = condensation.trigger == JUDGED
    decision.action = Action.CONDENSED
    decision.trigger = trigger_of(condensation) if judged or trigger is None else trigger
    decision.applied, decision.metadata, decision.ready = condensation, condensation.metadata, ready
    decision.view = folded(case, condensation)
    decision.tokens_after = decision.view.tokens


def _replay(decision: Decision, case: Case) -> None:
    decision.tokens_after = decision.view.tokens
    if not case.recognised.condensations:
        return
    last = case.recognised.last_applied(case.history)
    found = replay(
        case.measured.transcript,
        case.recognised.condensations,
        case.overhead,
        case.counter,
        case.policy.budget,
        last,
    )
    decision.view, decision.applied, decision.tokens_after = found.view, found.applied, found.view.tokens
    if found.applied is not None:
        decision.action = (
            Action.CONDENSED if case.recognised.session and last not in (None, found.applied.id) else Action.REPLAYED
        )


def _walk(decision: Decision, case: Case) -> None:
    """Makes the view without a store."""
    if case.policy.budget is None:
        return
    budget = case.policy.budget.coarse
    wanted = required(decision.view.tokens, budget, since=None)
    decision.view = walked(case, budget)
    decision.tokens_after = decision.view.tokens
    if wanted is not None and decision.view.changed:
        decision.trigger = TRIGGERS[wanted]
    failure = decision.reason
    _refuse_if_hopeless(decision)
    decision.reason = failure


def _name_floor(decision: Decision) -> None:
    found = floor_under(decision)
    if found is not None:
        decision.reason, decision.floor = found.reason, found.tokens


def _refuse_if_hopeless(decision: Decision) -> None:
    """Raises where what is left is larger than the window by more than the count may be wrong."""
    budget = decision.policy.budget
    if budget is None:
        return
    most = EXACT_ERROR if decision.exact else ESTIMATE_ERROR
    error = most if decision.calibrated.error is None else min(decision.calibrated.error, most)
    if decision.view.tokens > budget.window * (1 + error):
        raise ContextLengthExceeded(account(decision), param="messages")
