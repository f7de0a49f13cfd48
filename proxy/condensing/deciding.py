"""Decides which view is forwarded: the standing condensation is replayed, and a new one is made if one is required.

    replay     fold the transcript with the standing condensation          (strategies/core/condensation.py)
    assess     must the view be condensed, and at what price               (`assess_need`, below)
    prepared   apply the condensation that was prepared for this           (proxy/condensing/preparing.py)
    make       run the pipeline in the time given; record the result       (proxy/condensing/making.py)
    inject     put a memory block before the newest user message           (proxy/condensing/recall.py)

`making.py` drives strategies; this file decides when. A failure inside the proxy never stops a request: a view
that cannot be condensed is sent as it is, and if the store is down, the view is made from the transcript alone. Only a
request that no upstream could serve is refused, and the error says where its tokens are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from proxy.condensing.account import refuse_if_hopeless, refuse_over_budget
from proxy.condensing.attempt import recognition_reason, undecided
from proxy.condensing.making import TRIGGERS, Maker, RunResult
from proxy.condensing.preparing import Preparer
from proxy.condensing.reasoning import fold_view, transcript_under
from proxy.condensing.recall import Injector
from proxy.condensing.traits import failed_try
from proxy.condensing.turn import Decision, RequestContext
from proxy.conversations.keeping import Keeper
from proxy.conversations.searching import NO_OFFER
from proxy.errors import ProxyError
from proxy.reasons import NO_MORE_CONDENSED, Action, Reason, Trigger
from proxy.store.base import StoreError
from strategies.core.budget import Budget
from strategies.core.condensation import JUDGED, Condensation, Replayed, best_prepared, replay
from strategies.core.requirement import RULES, Requirement, floor, has_grown, is_called, requirement_for
from strategies.pipeline import is_due

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decider:
    maker: Maker
    preparer: Preparer
    keeper: Keeper
    injector: Injector
    timeout: float  # seconds that a request waits for models

    async def decide(self, context: RequestContext) -> Decision:
        """The decision on a request; after an internal error, to forward it unchanged. Raises `ProxyError`."""
        try:
            decision = await self._decide_by_mode(context)
            refuse_over_budget(decision)
            return decision  # noqa: TRY300
        except ProxyError:
            raise
        except Exception:  # noqa: BLE001
            _log.exception("deciding on the request failed; it is forwarded unchanged")
        return undecided(context)._replace(action=Action.DEGRADED, reason=Reason.INTERNAL_ERROR)

    async def _decide_by_mode(self, context: RequestContext) -> Decision:
        decision, pipeline = undecided(context), context.policy.pipeline
        if context.is_spared:
            return decision._replace(reason=Reason.REWRITE_REFUSED)
        if pipeline.is_off:
            return decision._replace(reason=decision.reason or Reason.STRATEGY_OFF).with_loss_told()
        made = await self._condensed(_replayed(decision))
        if pipeline.observe:
            return as_observed(with_floor_reason(made))
        await refuse_if_hopeless(made)
        return with_floor_reason(await self.injector.inject(made)).with_loss_told()

    async def _condensed(self, decision: Decision) -> Decision:
        deadline = asyncio.get_running_loop().time() + self.timeout
        if decision.context.recognised.failure:
            requirement, _ = assess_need(decision)
            return decision if requirement is None else await self._unrecorded(requirement, decision, deadline)
        recorded = await self.preparer.vote_before_forwarding(decision, deadline)
        decision = decision.in_context(decision.context.with_recorded(recorded))
        requirement, reason = assess_need(decision)
        decision = decision._replace(reason=reason or decision.reason)
        if requirement is None:
            return decision
        prepared = await self._with_prepared(requirement, decision, deadline)
        if prepared is not None:
            decision, requirement = prepared, still_required(prepared)
        elif requirement is Requirement.SOFT and all(stage.asks for stage in decision.context.policy.stages):
            return decision._replace(reason=why_not_prepared(decision))
        return decision if requirement is None else await self._with_new(requirement, decision, deadline)

    async def _unrecorded(self, requirement: Requirement, decision: Decision, deadline: float) -> Decision:
        """The decision with a view that no record holds, because the store has failed; the same if it does not help.

        Models are not asked: nothing would be kept of what they cost.
        """
        policy = decision.context.policy._replace(
            stages=[stage for stage in decision.context.policy.stages if not stage.asks], asks_models=False
        )
        ruled = decision.in_context(decision.context._replace(policy=policy))
        made = (await self.maker.make(requirement, ruled, deadline)).condensation
        if made is None:
            return decision
        return decision.with_view(fold_view(decision.context, made))._replace(trigger=TRIGGERS[requirement])

    async def _with_new(self, requirement: Requirement, decision: Decision, deadline: float) -> Decision:
        result = await self.maker.make(requirement, decision, deadline)
        made = _made(decision, result)
        if result.condensation is None and requirement is Requirement.SOFT:
            if decision.action is Action.CONDENSED:
                return decision  # A prepared condensation has just been applied, and that is enough.
            if decision.context.policy.asks_models:
                made = made._replace(reason=why_not_prepared(decision))
        return made

    async def _with_prepared(self, requirement: Requirement, decision: Decision, deadline: float) -> Decision | None:
        """The decision with a prepared condensation, None if there is none.

        If the requirement may ask a model, a preparation under way is waited for.
        """
        prepared, context = find_prepared(requirement, decision), decision.context
        if prepared is None and RULES[requirement].asks:
            # Until the deadline: starting the same work again would pay for it twice and be ready no sooner.
            context = context.with_recorded(await self.preparer.wait_for_preparation(context, deadline))
            decision = decision.in_context(context)
            prepared = find_prepared(requirement, decision)
        if prepared is None or prepared.applied is None:
            return None
        extended = self.maker.extend_judged(prepared, context.policy.judging)
        decision = _applied(decision, extended or prepared.applied, TRIGGERS[requirement], was_prepared=True)
        if context.is_projected or not context.may_store:
            return decision
        try:
            if extended is None:
                await self.keeper.mark_standing(context.recognised, prepared.applied)
                return decision
            kept = await self.keeper.record(context.recognised, extended, standing=True)
            return _applied(decision, kept, was_prepared=True)
        except StoreError as error:
            return decision._replace(action=Action.DEGRADED, reason=error.reason)

    async def smaller(self, refused: Decision, aim: Budget, seconds: float) -> Decision:
        """The decision for a view that aims to be smaller than a refused one; models get `seconds`."""
        refused = refused._replace(context=refused.context.with_recorded(refused.applied), reason="")
        sized = refused.context.sized._replace(budget=aim)
        shrunk = await self._shrunk(refused.in_context(refused.context._replace(sized=sized)), aim, seconds)
        return with_floor_reason(await self.injector.inject(shrunk.in_context(refused.context)))

    async def _shrunk(self, decision: Decision, aim: Budget, seconds: float) -> Decision:
        deadline = asyncio.get_running_loop().time() + seconds
        if decision.context.recognised.failure:
            return await self._unrecorded(Requirement.OVERFLOW, decision, deadline)
        prepared = await self._with_prepared(Requirement.OVERFLOW, decision, deadline)
        if prepared is not None and prepared.tokens_after < aim.trigger:
            return prepared
        decision = prepared or decision
        result = await self.maker.make(Requirement.OVERFLOW, decision, deadline)
        return _made(decision, result, Trigger.OVERFLOW)


def as_observed(made: Decision) -> Decision:
    """The decision under `observe:`: the transcript is sent as it came, and headers say what would have been done."""
    would = made.action in (Action.CONDENSED, Action.REPLAYED)
    passed = undecided(made.context)
    return made._replace(action=Action.WOULD_CONDENSE if would else passed.action, view=passed.view, applied=None)


def standing_decision(context: RequestContext) -> Decision:
    """The decision on a client's compaction that sends the view as it stands: no model is asked, nothing is offered."""
    decision = undecided(context.with_offer(NO_OFFER))
    decision = _replayed(decision) if context.policy.rewrites else decision
    return decision._replace(reason=decision.reason or Reason.CLIENT_COMPACTION)


def _made(decision: Decision, result: RunResult, trigger: Trigger | None = None) -> Decision:
    decision = decision._replace(own_tokens=decision.own_tokens + result.own_tokens, reason=result.reason)
    if result.condensation is not None:
        decision = _applied(decision, result.condensation, trigger)
    if result.store_failure:
        decision = decision._replace(action=Action.DEGRADED, reason=result.store_failure)
    return decision


def _applied(
    decision: Decision, condensation: Condensation, trigger: Trigger | None = None, *, was_prepared: bool = False
) -> Decision:
    """The decision with a condensation in its view.

    `trigger` is the requirement's. Without it, or for a judged condensation, the record's own trigger is reported.
    """
    if trigger is None or condensation.trigger == JUDGED:
        # A trigger that only a newer version knows counts as THRESHOLD.
        trigger = Trigger(condensation.trigger) if condensation.trigger in set(Trigger) else Trigger.THRESHOLD
    return decision.with_view(fold_view(decision.context, condensation))._replace(
        action=Action.CONDENSED,
        trigger=trigger,
        applied=condensation,
        metadata=condensation.metadata,
        was_prepared=was_prepared,
    )


def _replayed(decision: Decision) -> Decision:
    """The decision with the standing condensation."""
    context = decision.context
    if not context.recognised.condensations:
        return decision.with_view(decision.view)
    view, applied = replay(
        context.history.shown,
        context.recognised.condensations,
        context.sized.overhead,
        context.server.counter,
        context.sized.budget,
        context.recognised.last_applied,
    )
    if transcript_under(context, applied) is not context.history.shown:
        view = fold_view(context, applied)
    if applied is None:
        return decision.with_view(view)
    return decision.with_view(view)._replace(applied=applied, action=Action.REPLAYED, metadata=applied.metadata)


def assess_need(decision: Decision) -> tuple[Requirement | None, str]:
    """The requirement that a decision's view raises; or None, and why, if the decision does not say so already."""
    context = decision.context
    if context.sized.budget is None:
        return None, Reason.WINDOW_UNKNOWN
    view, budget, tokens = decision.view, context.budget, decision.tokens_after
    since = decision.applied.tokens_after if decision.applied else None
    judged = best_prepared(view, decision.applied, context.recognised.condensations, budget, judged_only=True)
    due = judged is not None or any(is_due(stage, view, budget) for stage in context.policy.stages)
    called = is_called(view, budget)
    requirement = requirement_for(
        tokens, budget, since=since, called=called, forced=context.request.controls.force, due=due
    )
    if requirement is Requirement.SOFT and context.aside is not None:
        return None, context.aside.reason
    if requirement is Requirement.SOFT and context.is_held_back(decision.applied):
        return None, Reason.REVERTED
    if requirement is not None:
        return requirement, ""
    if called and not has_grown(tokens, budget, since):
        return None, Reason.WAITING_FOR_STEP
    is_below = context.policy.below if decision.action is Action.PASSED else ""
    return None, recognition_reason(context) or why_no_record(decision) or is_below


def find_prepared(requirement: Requirement, decision: Decision) -> Replayed | None:
    """The prepared condensation to apply, if there is one; under a judge, SOFT applies a judged one only."""
    return best_prepared(
        decision.view,
        decision.applied,
        decision.context.recognised.condensations,
        decision.context.budget,
        judged_only=requirement is Requirement.SOFT and decision.context.policy.judging is not None,
        least_shrink=RULES[requirement].least_shrink,
    )


def with_floor_reason(decision: Decision) -> Decision:
    """The decision with its floor, if that keeps the view from its target or from fitting."""
    budget, view = decision.context.sized.budget, decision.view
    if budget is None or decision.action is Action.DEGRADED or view.tokens < budget.prepare:
        return decision
    least = floor(view, budget)
    if view.tokens > budget.fits:
        return decision._replace(reason=Reason.IRREDUCIBLE, floor=least)
    if least > budget.target and decision.reason in NO_MORE_CONDENSED:
        return decision._replace(reason=Reason.FLOOR, floor=least)
    return decision


def why_no_record(decision: Decision) -> str:
    """Why the record that judges wanted for this view failed; "" if none did."""
    context = decision.context
    session = context.recognised.session
    failed = failed_try.TRAIT.of(session) if session else None
    if failed is None or not failed.judged:
        return ""
    is_same = failed.branch == context.branch_name and failed.applied == decision.base.applied_id
    return failed.reason if is_same else ""


def why_not_prepared(decision: Decision) -> str:
    """Why a view at the trigger is not condensed although a model could do it."""
    if reason := why_no_record(decision):
        return reason
    context = decision.context
    stage, session = context.policy.judging, context.session_facts(context.request.received_at)
    if stage is None:
        return Reason.NOT_PREPARED
    digests = context.history.transcript.digests
    last = next((verdict for verdict in reversed(session.verdicts) if verdict.applies_to(digests)), None)
    is_none_due = not (stage.inline or context.policy.prepares) or stage.has_judged_enough(decision.view, session)
    return Reason.NO_VERDICT if is_none_due or (last is not None and last.failure) else Reason.AWAITING_VERDICT


def still_required(decision: Decision) -> Requirement | None:
    """The requirement of a view that has just applied a prepared condensation.

    HARD, to make it fit. SOFT, if messages that came after the preparation keep it above its target, and a stage that
    asks no model may help. Else none, as after a judged condensation, which was not made for the view's size.
    """
    tokens, applied, budget = decision.tokens_after, decision.applied, decision.context.budget
    if applied is None:
        return None
    if requirement_for(tokens, budget, since=applied.tokens_after, called=False) is Requirement.HARD:
        return Requirement.HARD
    if tokens <= budget.target or applied.trigger == JUDGED or decision.action is Action.DEGRADED:
        return None
    return None if all(stage.asks for stage in decision.context.policy.stages) else Requirement.SOFT
