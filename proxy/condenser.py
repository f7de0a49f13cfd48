"""The driver: one request from its parsed body to the bytes that are forwarded.

    take in    transcript, counts, session, strategy, window, budget       (proxy/intake.py)
    replay     fold the transcript with the condensation that stands       (strategies/core/replay.py)
    require    must the view be condensed, and at what price               (strategies/core/requirement.py)
    attempt    run the pipeline, resolving its effects in the time given   (proxy/attempts.py)
    record     the first writer of a condensation wins; its bytes are sent
    forward    splice the view into the body                               (proxy/wire.py)

It is the only caller of a strategy. Whatever of ours fails, the request goes on with what is there: a view that
could not be condensed is sent as it is, a store that is out is replaced by the walk. The only refusal is of a
request that no upstream could serve, with an account of where its tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from proxy.account import account
from proxy.attempts import Attempted, Attempts
from proxy.decision import Action, Decision, Timing, Trigger
from proxy.errors import ContextLengthExceeded
from proxy.flights import Flights
from proxy.intake import Case, ChatRequest, Intake, milliseconds
from proxy.keeping import Keeper, Turn, is_small
from proxy.reasons import Reason
from proxy.store.base import StoreError
from proxy.summarizer import Caller
from strategies.core.condensation import Condensation
from strategies.core.plan import head_pieces
from strategies.core.protocol import Past
from strategies.core.replay import replay
from strategies.core.requirement import RULES, Requirement, has_grown, required
from strategies.core.view import View, fold
from strategies.pipeline import Outcome
from strategies.walk import walk

EXACT_ERROR = 0.10
ESTIMATE_ERROR = 0.25
_TRIGGERS = {
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}


class Condenser:
    """Decides on requests; one per app."""

    def __init__(
        self,
        *,
        intake: Intake,
        keeper: Keeper,
        attempts: Attempts,
        clock: Callable[[], float],
    ) -> None:
        self._intake = intake
        self._keeper = keeper
        self._attempts = attempts
        self._clock = clock
        self._flights: Flights[Attempted] = Flights()

    async def decide(self, request: ChatRequest) -> Decision:
        """The decision for a request; raises `BadRequest` and `ContextLengthExceeded` only."""
        timing = Timing()
        case = await self._intake.case(request, timing)
        started = perf_counter()
        decision = await self._decided(case)
        rewritten = decision.view.changed or case.is_rewritten
        decision.body = request.body.spliced(
            messages=decision.view.to_json() if rewritten else None,
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
        requirement = _requirement(decision, case)
        if requirement is None:
            return
        attempted = await self._attempt(requirement, decision, case, asks=not case.request.controls.dry_run)
        if attempted.outcome is not None:
            await self._apply(decision, requirement, attempted.outcome, case)
        _refuse_if_hopeless(decision)

    async def _observe(self, decision: Decision, case: Case) -> None:
        """Says what would be done, with texts of the size that a model's may have; changes nothing."""
        requirement = _requirement(decision, case)
        if requirement is None:
            return
        attempted = await self._attempt(requirement, decision, case, asks=False)
        if attempted.outcome is not None:
            decision.action, decision.trigger = Action.WOULD_CONDENSE, _TRIGGERS[requirement]
            decision.tokens_after = attempted.outcome.view.tokens
            decision.exact = decision.exact and not attempted.asked
            decision.metadata = _metadata(attempted.outcome, decision)

    async def _attempt(self, requirement: Requirement, decision: Decision, case: Case, *, asks: bool) -> Attempted:
        caller = Caller(case.request.model, case.request.headers) if asks else None
        past = Past(self._clock(), case.found.condensations)
        started = perf_counter()
        work = self._attempts.attempt(requirement, decision.view, case.policy, past, caller)
        if asks and RULES[requirement].asks:
            attempted, led = await self._flights.join(_flight(requirement, decision, case), work)
        else:
            attempted, led = await work, True
        decision.attempt_ms = milliseconds(started)
        decision.own_tokens, decision.reason = attempted.own_tokens if led else 0, attempted.reason
        return attempted

    async def _apply(self, decision: Decision, requirement: Requirement, outcome: Outcome, case: Case) -> None:
        """Makes the outcome this request's view; where it is recorded, the store's bytes are what is sent."""
        made = self._condensation(decision, requirement, outcome)
        decision.action, decision.trigger, decision.metadata = Action.CONDENSED, _TRIGGERS[requirement], made.metadata
        decision.applied = made
        if case.keeps:
            try:
                decision.applied = await self._keeper.keep(case.found, made)
            except StoreError as error:
                decision.action, decision.reason = Action.DEGRADED, error.reason
        decision.view = _folded(case, decision.applied)
        decision.tokens_after = decision.view.tokens

    def _condensation(self, decision: Decision, requirement: Requirement, outcome: Outcome) -> Condensation:
        view, budget = outcome.view, decision.policy.budget
        digest = view.transcript.digests[view.covered - 1]
        depth = decision.depth + 1
        return Condensation(
            id=f"c{digest.hex()[:12]}-{depth}",
            digest=digest,
            covered=view.covered,
            depth=depth,
            pieces=head_pieces(view),
            window=budget.window if budget else 0,
            strategy=str(decision.policy.pipeline),
            requirement=requirement.value,
            trigger=_TRIGGERS[requirement].value,
            tokens_before=decision.tokens_after,
            tokens_after=view.tokens,
            created_at=self._clock(),
            own_tokens=decision.own_tokens,
            parent=decision.applied.id if decision.applied else None,
            metadata=_metadata(outcome, decision),
        )

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
            if case.append is None:
                await self._keeper.settle(found, turn)
            elif reply is not None:
                line, block = case.append.block(reply)
                await self._keeper.settle(found, replace(turn, line=line, blocks={line.block: block}))

        decision.settle = settle


def _flight(requirement: Requirement, decision: Decision, case: Case) -> Hashable:
    """What makes two condensations the same work: the same chain, from the same view, to the same end."""
    chain, policy = case.measured.transcript.digests, case.policy
    applied = decision.applied.id if decision.applied else ""
    options = tuple(str(getattr(stage, "options", "")) for stage in policy.stages)
    whose = (case.request.tenant, case.found.identity, case.request.model)
    return (*whose, chain[-1] if chain else b"", applied, requirement, policy.pipeline, options, policy.budget)


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
    requirement = required(tokens, budget, since=since, forced=case.request.controls.force)
    if requirement is None and tokens >= budget.trigger and not has_grown(tokens, budget, since):
        decision.reason = Reason.WAITING_FOR_STEP
    elif requirement is None and (decision.action is Action.PASSED or _news(case)):
        decision.reason = _news(case) or Reason.BELOW_MARKS
    return requirement


def _news(case: Case) -> str:
    """What a person should know of how the conversation was recognised."""
    if case.measured.restored:
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


def _metadata(outcome: Outcome, decision: Decision) -> dict[str, object]:
    return {
        "stages": outcome.stages,
        "reasons": outcome.reasons,
        "compressionDuration": round(decision.attempt_ms, 1),
        **outcome.metadata,
    }
