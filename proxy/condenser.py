"""The driver: takes one request from its parsed body to the bytes that are forwarded.

    take in    transcript, counts, session, strategy, window, budget       (proxy/condensing/intake.py)
    replay     fold the transcript with the condensation that stands       (strategies/core/replay.py)
    require    must the view be condensed, and at what price               (strategies/core/requirement.py)
    make       run the pipeline in the time given; record the result       (proxy/condensing/making.py, attempts.py)
    forward    splice the view into the body                               (proxy/request/wire.py)
    settle     learn from the reply, store the session before its last byte (proxy/condensing/settling.py)

The driver is the only caller of a strategy. A failure inside the proxy never stops a request: a view that cannot be
condensed is sent as it is, the walk (strategies/walk.py) replaces a store that is down, and a request that a defect
keeps from being taken in is forwarded as it came. The proxy refuses only a request that no upstream could serve, and
the error says where its tokens are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from time import perf_counter

from proxy.condensing.decision import Decision, trigger_of
from proxy.condensing.inject import with_standing_block
from proxy.condensing.intake import Case, Intake
from proxy.condensing.making import TRIGGERS, Maker
from proxy.condensing.policy import Policy, requested_reply_length
from proxy.condensing.preparing import Preparer
from proxy.condensing.requiring import (
    assess_need,
    find_prepared,
    floor_under,
    still_required,
    waits_to_pay_back,
    why_not_prepared,
)
from proxy.condensing.searching import Memories
from proxy.condensing.settling import Settler
from proxy.condensing.timing import Timing
from proxy.condensing.token_account import refuse_if_hopeless
from proxy.condensing.trials import trial_of
from proxy.condensing.undecided import as_it_came, fold_view, undecided
from proxy.condensing.viewing import is_first_of_a_truncated_window, probes, spliced, view_without_store
from proxy.errors import ProxyError
from proxy.learning.profiles import Profile
from proxy.reasons import Action, Reason, Trigger
from proxy.request.chat import ChatRequest
from proxy.runtime.clock import milliseconds_since
from proxy.sessions.keeping import Keeper
from proxy.settings import Settings
from proxy.store.base import StoreError
from strategies.core.budget import Budget
from strategies.core.condensation import Condensation
from strategies.core.prepared import JUDGED
from strategies.core.replay import replay
from strategies.core.requirement import RULES, Requirement, requirement_for
from strategies.core.view import View

_log = logging.getLogger(__name__)


class Condenser:
    """Decides what to forward for each request; one per app."""

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
        """Decides what to forward for a request.

        Raises only `ProxyError`. A dry run forwards nothing, so there an exception in reading the request or in writing
        the view propagates too.
        """
        timing = Timing()
        try:
            decision = await self._decide_and_write(request, timing)
        except Exception as error:
            if isinstance(error, ProxyError) or request.controls.dry_run:
                raise
            _log.exception("a request was not taken in")
            decision = as_it_came(request)
        decision.timing = timing
        return decision

    async def _decide_and_write(self, request: ChatRequest, timing: Timing) -> Decision:
        case = with_standing_block(await self._intake.build_case(request, timing))
        return self._trial(case, timing) or await self._decide_case(case, timing)

    def _trial(self, case: Case, timing: Timing) -> Decision | None:
        """The decision to send a request whole as a trial; if it is refused, it is decided on as usual."""
        found = trial_of(case, self._intake.takes_trial, probe=self._usage_probe)
        if found is None:
            return None
        trial, whole = found
        self._attach_callbacks(trial, whole)
        trial.retry_smaller = lambda *_: self._decide_case(case, timing)
        return trial

    async def _decide_case(self, case: Case, timing: Timing) -> Decision:
        started = perf_counter()
        decision = await self._decide_or_degrade(case)
        self._write(decision, case)
        timing.condense = milliseconds_since(started)
        decision.timing = timing
        self._attach_callbacks(decision, case)
        return decision

    def _attach_callbacks(self, decision: Decision, case: Case, *, is_last: bool = False) -> None:
        """Attaches to a decision the callbacks that handle its outcome: a usage, a finished reply, or a refusal.

        With `is_last` the view may still be rewritten for another profile, but no other view follows on it.
        """
        self._settler.attach_callbacks(decision, case)
        pipeline = case.policy.pipeline
        if not (pipeline.is_off or pipeline.observe):
            if not is_last:
                decision.retry_smaller = lambda policy, aim: self._retry_smaller(decision, case, policy, aim)
                decision.original = lambda: self._original(decision, case)
            decision.rewrite_for = lambda profile: self._rewrite_for(decision, case, profile, is_last=is_last)

    def _rewrite_for(self, decision: Decision, case: Case, profile: Profile, *, is_last: bool) -> bool:
        """Rewrites a decision's view for another profile, and returns whether its bytes have changed."""
        before, case = decision.body, case.for_profile(profile)
        transcript = decision.view.transcript.with_form(profile.form)
        decision.policy, decision.view = case.policy, replace(decision.view, transcript=transcript)
        decision.tokens_after = decision.view.tokens
        self._write(decision, case)
        self._attach_callbacks(decision, case, is_last=is_last)
        return decision.body != before

    def _original(self, refused: Decision, case: Case) -> Decision | None:
        """The decision to send the request as it came; None if that is what was refused, or does not fit."""
        case = case.as_it_came()
        original = undecided(case)
        original.reason, original.body = Reason.REWRITE_REFUSED, spliced(original.view, case)
        original.timing, original.own_tokens = refused.timing, refused.own_tokens
        if original.body == refused.body or not _fits(original, case):
            return None
        self._attach_callbacks(original, case)
        return original

    async def _retry_smaller(self, refused: Decision, case: Case, policy: Policy, aim: Budget) -> Decision | None:
        """Condenses the request's view below the size of the refused one.

        Returns the new decision, or None if the view cannot be made smaller.
        """
        started = perf_counter()
        policy = policy.scaled(case.calibrated.scale)
        case = case.with_recorded([refused.applied] if refused.applied else [])._replace(policy=policy)
        smaller = replace(
            refused,
            policy=policy,
            timing=replace(refused.timing),
            settle=None,
            follow_up=None,
            retry_smaller=None,
            original=None,
        )
        await self._shrink(smaller, case, aim)
        await self._memories.injector.inject(smaller, case)
        _report_floor(smaller)
        if smaller.tokens_after >= refused.tokens_after:
            return None
        self._write(smaller, case)
        smaller.timing.condense += milliseconds_since(started)
        self._attach_callbacks(smaller, case, is_last=True)
        return smaller

    async def _shrink(self, decision: Decision, case: Case, budget: Budget) -> None:
        """Condenses a view for OVERFLOW, in what the first decision has left of `inline_timeout`."""
        case = case._replace(policy=case.policy._replace(budget=budget))
        if case.recognised.failure:
            decision.view, decision.trigger = view_without_store(case, budget), Trigger.OVERFLOW
            decision.tokens_after = decision.view.tokens
            return
        left = self._inline_timeout - decision.timing.condense / 1000
        deadline = asyncio.get_running_loop().time() + max(left, 0.0)
        has_applied = await self._apply_prepared(Requirement.OVERFLOW, decision, case, deadline)
        if has_applied and decision.tokens_after < budget.trigger:
            return
        result = await self._maker.make(Requirement.OVERFLOW, decision, case, deadline)
        decision.own_tokens += result.own_tokens
        decision.reason = result.reason
        if result.condensation is not None:
            _apply(decision, result.condensation, case, Trigger.OVERFLOW)
        if result.failure:
            decision.action, decision.reason = Action.DEGRADED, result.failure

    async def _decide_or_degrade(self, case: Case) -> Decision:
        """Decides; a defect of ours costs headroom only, for the transcript is then forwarded as it is."""
        try:
            return await self._decide_by_mode(case)
        except ProxyError:
            raise
        except Exception:  # noqa: BLE001
            _log.exception("a request was not decided on")
        decision = undecided(case)
        decision.action, decision.reason = Action.DEGRADED, Reason.INTERNAL_ERROR
        return decision

    async def _decide_by_mode(self, case: Case) -> Decision:
        decision = undecided(case)
        pipeline = case.policy.pipeline
        session = case.recognised.session
        if session is not None and session.rewriting_refused:
            decision.reason = Reason.REWRITE_REFUSED
        elif pipeline.is_off:
            decision.reason = decision.reason or Reason.STRATEGY_OFF
        elif pipeline.observe:
            await self._observe(decision, case)
        elif case.recognised.failure:
            _walk(decision, case)
        else:
            _replay(decision, case)
            await self._condense(decision, case)
            await self._memories.injector.inject(decision, case)
            _report_floor(decision)
            if is_first_of_a_truncated_window(decision, case):
                decision.reason = Reason.SILENT_TRUNCATION
        return decision

    async def _condense(self, decision: Decision, case: Case) -> None:
        deadline = asyncio.get_running_loop().time() + self._inline_timeout
        if not case.request.controls.dry_run:
            case = case.with_recorded(await self._preparer.vote_before_forwarding(decision, case, deadline))
        requirement, reason = assess_need(decision, case)
        decision.reason = reason or decision.reason
        if requirement is Requirement.SOFT and waits_to_pay_back(decision, case, self._cache_lifetime):
            decision.reason = Reason.AWAITING_PAYBACK
            return
        if requirement is None:
            return
        if await self._apply_prepared(requirement, decision, case, deadline):
            requirement = still_required(decision)
        elif requirement is Requirement.SOFT and all(stage.asks for stage in case.policy.stages):
            decision.reason, requirement = why_not_prepared(decision, case), None
        if requirement is not None:
            await self._make(requirement, decision, case, deadline)

    async def _make(self, requirement: Requirement, decision: Decision, case: Case, deadline: float) -> None:
        """Makes a condensation now, and applies it to the decision's view."""
        if case.request.controls.dry_run:
            result = await self._maker.project(requirement, decision, case)
        else:
            result = await self._maker.make(requirement, decision, case, deadline)
        if result.condensation is None and requirement is Requirement.SOFT and decision.action is Action.CONDENSED:
            return  # A prepared condensation has just been applied, and that is enough.
        decision.own_tokens, decision.reason = result.own_tokens, result.reason
        if result.condensation is not None:
            _apply(decision, result.condensation, case)
        elif requirement is Requirement.SOFT and case.policy.asks_models:
            decision.reason = why_not_prepared(decision, case)
        if result.failure:
            decision.action, decision.reason = Action.DEGRADED, result.failure
        refuse_if_hopeless(decision)

    async def _apply_prepared(self, requirement: Requirement, decision: Decision, case: Case, deadline: float) -> bool:
        """Applies a prepared condensation to this request's view, and returns whether there was one.

        If none is ready yet and the requirement may ask a model, the method waits for a preparation that is under way.
        """
        prepared = find_prepared(requirement, decision, case)
        may_wait = RULES[requirement].asks and not case.request.controls.dry_run
        if prepared is None and may_wait:
            # Until the deadline: what is being made is not asked for twice, and later there is no time to ask.
            case = case.with_recorded(await self._preparer.wait_for_preparation(case, deadline))
            prepared = find_prepared(requirement, decision, case)
        if prepared is None or prepared.applied is None:
            return False
        applied = self._extended(prepared.view, prepared.applied, case) or prepared.applied
        _apply(decision, applied, case, TRIGGERS[requirement], ready=True)
        if case.may_store:
            await self._record_as_standing(decision, applied, case, is_new=applied is not prepared.applied)
        return True

    def _extended(self, view: View, judged: Condensation, case: Case) -> Condensation | None:
        """A judged record, extended over later messages that its strategy drops; None if it stands as it is."""
        stage = case.policy.judging
        shortened = stage.shortened(view, judged.metadata) if stage is not None and judged.trigger == JUDGED else None
        return None if shortened is None else self._maker.extended_over(judged, shortened)

    async def _record_as_standing(
        self, decision: Decision, condensation: Condensation, case: Case, *, is_new: bool
    ) -> None:
        try:
            if is_new:
                _apply(decision, await self._keeper.record_standing(case.recognised, condensation), case, ready=True)
            else:
                await self._keeper.mark_standing(case.recognised, condensation)
        except StoreError as error:
            decision.action, decision.reason = Action.DEGRADED, error.reason

    async def _observe(self, decision: Decision, case: Case) -> None:
        """Reports what would be done under `observe:`, and changes nothing."""
        requirement, reason = assess_need(decision, case)
        decision.reason = reason or decision.reason
        if requirement is None:
            return
        result = await self._maker.project(requirement, decision, case)
        decision.reason = result.reason
        if result.condensation is not None:
            decision.action, decision.trigger = Action.WOULD_CONDENSE, TRIGGERS[requirement]
            decision.tokens_after = fold_view(case, result.condensation).tokens
            decision.exact = decision.exact and not result.used_model
            decision.metadata = result.condensation.metadata
        elif requirement is Requirement.SOFT and case.policy.asks_models:
            decision.reason = why_not_prepared(decision, case)

    def _write(self, decision: Decision, case: Case) -> None:
        decision.probed = self._usage_probe and probes(decision.view, case)
        decision.body = spliced(decision.view, case, probe=decision.probed)


def _apply(
    decision: Decision, condensation: Condensation, case: Case, trigger: Trigger | None = None, *, ready: bool = False
) -> None:
    """Makes a condensation this request's view.

    `trigger` is the requirement's; for a judged condensation, or without one, the record's own trigger is reported.
    """
    judged = condensation.trigger == JUDGED
    decision.action = Action.CONDENSED
    decision.trigger = trigger_of(condensation) if judged or trigger is None else trigger
    decision.applied, decision.metadata, decision.was_prepared = condensation, condensation.metadata, ready
    decision.view = fold_view(case, condensation)
    decision.tokens_after = decision.view.tokens


def _replay(decision: Decision, case: Case) -> None:
    decision.tokens_after = decision.view.tokens
    if not case.recognised.condensations:
        return
    last = case.recognised.last_applied(case.history)
    replayed = replay(
        case.measured.transcript,
        case.recognised.condensations,
        case.overhead,
        case.counter,
        case.policy.budget,
        last,
    )
    decision.view, decision.applied, decision.tokens_after = replayed.view, replayed.applied, replayed.view.tokens
    if replayed.applied is not None:
        decision.action, decision.metadata = Action.REPLAYED, replayed.applied.metadata


def _walk(decision: Decision, case: Case) -> None:
    """Makes the view from the transcript alone, because the store has failed."""
    if case.policy.budget is None:
        return
    budget = case.policy.budget.coarse
    requirement = requirement_for(decision.view.tokens, budget, since=None)
    decision.view = view_without_store(case, budget)
    decision.tokens_after = decision.view.tokens
    if requirement is not None and decision.view.is_changed:
        decision.trigger = TRIGGERS[requirement]
    store_failure = decision.reason
    refuse_if_hopeless(decision)
    decision.reason = store_failure


def _fits(decision: Decision, case: Case) -> bool:
    """Whether a view fits the window, with the reply that the request asks for; so it does where that is unknown."""
    budget, reply = decision.policy.budget, requested_reply_length(case.request.body.values) or 0
    return budget is None or decision.expected_tokens + reply <= budget.nominal_window


def _report_floor(decision: Decision) -> None:
    floor = floor_under(decision)
    if floor is not None:
        decision.reason, decision.floor = floor.reason, floor.tokens
