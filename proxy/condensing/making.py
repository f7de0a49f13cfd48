"""Makes condensations: runs a pipeline, once for all requests that want the same one, and records what it has made.

Running. A strategy is a generator that yields effects. Normally models answer them. For `observe:` and dry runs a
projection answers instead, with a text of the size that was asked for, so that no model is called. A request that waits
sets a deadline for models alone: a plan that asks none is made once, however long it takes. What models have not
answered by then has timed out for the plan that is under way. They continue in the background, and a late text is worth
a second plan, recorded for the next request. Failures become reasons.

Making.

    single flight          requests that want the same condensation share one task
    unless recorded        the store is asked whether the record has appeared since the request was recognised
    run and record         the pipeline runs, and the record is stored

A flight ends when its record is stored, so a request that comes too late for the flight finds the record instead of
planning and asking again. Flights save that work and decide nothing: replicas may make the same condensation at the
same time, and the first writer of a record wins.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from math import ceil
from time import perf_counter
from typing import NamedTuple, TypeVar

from proxy.asking import Caller, Resolver
from proxy.condensing.policy import Policy
from proxy.condensing.turn import Decision, RequestContext
from proxy.conversations.drops import dropped_in
from proxy.conversations.keeping import Keeper
from proxy.conversations.searching import offer_members
from proxy.protocols import compaction
from proxy.reasons import Reason, Trigger
from proxy.runtime.lru import Lru
from proxy.runtime.owned_tasks import NOBODY, OwnedTasks, Waiters, load_of, offload
from proxy.servers import LessonScope
from proxy.servers.shared_cache import SharedCache
from proxy.store.base import StoreError
from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.condensation import (
    JUDGED,
    Condensation,
    Replayed,
    shows_protected_messages,
    standing_condensations,
)
from strategies.core.effects import SUMMARIZER, Answer, Ask, Compact, Compacted, Effect, Failure, Result
from strategies.core.errors import StrategyError
from strategies.core.messages import TokenCounter, dump
from strategies.core.plan import head_pieces
from strategies.core.protocol import Judging, SessionFacts, Verdict
from strategies.core.requirement import Requirement
from strategies.core.view import View, fold
from strategies.native import NO_COMPACTION
from strategies.pipeline import Outcome, run_required

T = TypeVar("T")

PROJECTED = "(here a model's summary would stand) "
SHARE_OF_CAP = 0.75
"""The share of its cap that a projected text fills: the prompt asks a model for a little less than the cap."""

PROJECTED_COMPACTION = 2_000  # tokens of a vendor's compaction, which has no bound, where one is projected

_log = logging.getLogger(__name__)

Resolve = Callable[[tuple[Effect, ...]], Awaitable[tuple[Result, ...]]]


TRIGGERS = {
    # A prepared condensation is applied when the trigger is reached.
    Requirement.PREPARE: Trigger.THRESHOLD,
    Requirement.SOFT: Trigger.THRESHOLD,
    Requirement.HARD: Trigger.CONTEXT_LIMIT,
    Requirement.FORCED: Trigger.FORCED,
    Requirement.OVERFLOW: Trigger.OVERFLOW,
}


class Run(NamedTuple):
    """A run of a policy's pipeline that makes one condensation."""

    requirement: Requirement
    base: Replayed  # the view to condense, and the condensation in it
    policy: Policy
    budget: Budget | None  # in tokens of our own count
    session: SessionFacts
    started: float  # when it began, by `perf_counter`
    drops: frozenset[str] = frozenset()  # what a person has dropped from the ledger

    @property
    def trigger(self) -> Trigger:
        """The trigger of its condensation. What judges let prepare for a mark waits for the hard limit."""
        waits = self.requirement is Requirement.PREPARE and self.policy.judging is not None
        return Trigger.CONTEXT_LIMIT if waits else TRIGGERS[self.requirement]


class RunResult(NamedTuple):
    """A condensation, made or recorded, or the reason why there is none."""

    condensation: Condensation | None = None
    reason: str = ""
    own_tokens: int = 0  # tokens of our own model calls for this request
    asked_model: bool = False  # whether a model was asked, or its answer projected
    late: asyncio.Task[RunResult] | None = None  # the run with what a model answers after the deadline
    store_failure: str = ""  # the reason why the store did not take the record, if it did not
    store_seconds: float = 0.0  # seconds that the run waited for the store


@dataclass(slots=True)
class Models:
    """Resolves effects by models, however long that takes."""

    _resolver: Resolver
    _policy: Policy
    _budget: Budget | None
    caller: Caller  # on whose behalf models are asked; it becomes a background caller once no request waits
    _view: View
    _shared_cache: Callable[[LessonScope], SharedCache | None]

    async def __call__(self, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        caller, cache = self.caller, self._shared_cache(self.caller.scope)
        if cache is not None:
            room = await offload(load_of(self._view.transcript.chain), self._room, cache, effects)
            if room is None:
                _log.info("no own call to %s: beside the prompt it would not fit in the server's cache", caller.model)
                return tuple(Failure("shared-cache") for _ in effects)
            caller = replace(caller, room=room)
        return await self._resolver.resolve(effects, self._policy.roles, caller)

    def _room(self, cache: SharedCache, effects: tuple[Effect, ...]) -> int | None:
        """The server's tokens of the longest prompt; None if one and the view overfill a shared cache."""
        budget, text, longest = self._budget, self._view.counter.text, 0
        scale = budget.upstream_window / budget.window if budget is not None else 1.0
        for effect in effects:
            # A compaction's prompt is the view itself, which the server has just read.
            if not isinstance(effect, Compact) and self._policy.roles[effect.role].is_at(self.caller.upstream.name):
                prompt = sum(map(text, (effect.system, effect.user, getattr(effect, "view", None) or "")))
                if cache.is_shown and (prompt + effect.max_tokens + self._view.tokens) * scale > cache.size:
                    return None
                longest = max(longest, ceil(prompt * scale))
        return longest


@dataclass(slots=True, eq=False)
class PipelineRunner:
    _resolver: Resolver
    _tasks: OwnedTasks
    _clock: Callable[[], float]
    _expected_seconds: Callable[..., float]  # how long an answer would take (`Dispatcher.expected_seconds`)
    _shared_cache: Callable[[LessonScope], SharedCache | None]
    """The cache that the slots of a model's server share, or may share."""
    _cramped: Lru[int, bool] = field(default_factory=lambda: Lru(100), init=False)

    def _models(self, policy: Policy, budget: Budget | None, caller: Caller, view: View) -> Models:
        return Models(self._resolver, policy, budget, caller, view, self._shared_cache)

    async def project(self, run: Run) -> RunResult:
        """Runs the pipeline with projected texts in place of a model's."""
        return await self._drive(run, partial(_project, run.base.view.counter))

    async def run(self, run: Run, caller: Caller) -> RunResult:
        """Runs the pipeline, however long its models take."""
        return await self._drive(run, self._models(run.policy, run.budget, caller, run.base.view))

    async def run_until(self, deadline: float, run: Run, caller: Caller) -> RunResult:
        """Runs the pipeline, once; its models are waited for until `deadline`, a time of the event loop's clock."""
        is_over = deadline <= asyncio.get_running_loop().time()
        if is_over or self.is_hopeless(SUMMARIZER, run.policy, caller, deadline):
            # All the time was spent waiting for another replica, whose models are still at work; or the last answer
            # has taken longer than the client would wait for this one.
            return await self._drive(run, _time_out)
        caller = caller if caller.waiters is not NOBODY else replace(caller, waiters=Waiters())
        models = self._models(run.policy, run.budget, caller, run.base.view)
        timed = _TimedModels(models, deadline, self._tasks)
        try:
            result = await self._drive(run, timed)
        except asyncio.CancelledError:
            for call in timed.asked:
                call.cancel()
            raise
        if not timed.is_late:
            return result
        return result._replace(late=self._tasks.own(self._run_late(run, timed, result.own_tokens)))

    async def _run_late(self, run: Run, timed: _TimedModels, spent: int) -> RunResult:
        """Runs the pipeline again if the late answer has come; `spent` tokens of the answers are counted already."""
        if all(isinstance(each, Failure) for each in await timed.asked[-1]):
            return RunResult()
        timed.models.caller = replace(timed.models.caller, background=True)
        late = await self._drive(run, timed.repeat)
        return late._replace(own_tokens=late.own_tokens - spent)

    def is_hopeless(self, role: str, policy: Policy, caller: Caller, deadline: float, *, joins: bool = False) -> bool:
        """Whether an answer that takes as long as the last one would come after `deadline`, by the loop's clock.

        With `joins`, the answer of a call that is under way.
        """
        left = deadline - asyncio.get_running_loop().time()
        return self._expected_seconds(policy.roles[role], caller, joins=joins) > max(left, 0.0)

    async def _drive(self, run: Run, resolve: Resolve) -> RunResult:
        requirement, base, policy, budget, session, *_ = run
        if budget is None:
            return RunResult(reason=Reason.WINDOW_UNKNOWN)
        driver = _Driver(resolve, base.view)
        try:
            outcome = await driver.drive(
                run_required(requirement, policy.stages, policy.ladder, base.view, budget, session)
            )
        except StrategyError as error:
            if error.reason == Reason.NO_ROOM:
                self._note_no_room(budget)
            return RunResult(None, error.reason, driver.tokens, driver.has_asked)
        except Exception:  # noqa: BLE001
            # A defect in a strategy costs headroom, never the reply.
            _log.exception("a strategy failed")
            return RunResult(None, Reason.INTERNAL_ERROR, driver.tokens, driver.has_asked)
        for defect in outcome.defects:
            _log.error("a stage failed", exc_info=defect)
        if Reason.NO_ROOM in outcome.reasons.values():
            self._note_no_room(budget)
        made = condensation_of(run, outcome, driver.tokens, self._clock())
        if run.drops:
            made = replace(made.without(dropped_in(run.drops), base.view.counter.dialect), recorded=())
        return RunResult(made, outcome.failure, driver.tokens, driver.has_asked)

    def _note_no_room(self, budget: Budget) -> None:
        """Logs once for each window that a model's record has no room in it."""
        window = budget.upstream_window  # that in tokens of our own count moves with each request
        if self._cramped.get(window) is None:
            self._cramped.put(window, True)
            text = "a window of %d tokens has no room for a model's summary: stages that ask no model condense instead"
            _log.warning(text, window)

    async def ask_judges(
        self,
        polling: Generator[tuple[Effect, ...], tuple[Result, ...], T],
        view: View,
        context: RequestContext,
        caller: Caller,
    ) -> tuple[T, int]:
        """The result of a poll of judges about a view, and the tokens that it cost."""
        driver = _Driver(self._models(context.policy, context.budget, caller, view), view)
        return await driver.drive(polling), driver.tokens


def _new_id() -> str:
    """A random id for a condensation; records are found by chain and depth, not by this id."""
    return "c" + secrets.token_hex(8)


def _cards_of(condensation: str, cards: Iterable[MemoryCard], now: float) -> tuple[MemoryCard, ...]:
    """Memory cards as they are recorded with a condensation at `now`."""
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return tuple(replace(card, condensation=condensation, created_at=card.created_at or at) for card in cards)


def condensation_of(run: Run, outcome: Outcome, own_tokens: int, now: float) -> Condensation:
    """The condensation that a run has led to at `now`, in seconds since the epoch."""
    name, base, policy, view = _new_id(), run.base, run.policy, outcome.view
    return Condensation(
        id=name,
        digest=view.transcript.digests[view.covered_count - 1],
        covered=view.covered_count,
        depth=base.applied.depth + 1 if base.applied else 1,
        pieces=head_pieces(view),
        window=policy.budget.window if policy.budget else 0,
        strategy=policy.pipeline.text,
        requirement=run.requirement.value,
        trigger=run.trigger.value,
        tokens_before=base.view.tokens,
        tokens_after=view.tokens,
        created_at=now,
        cards=_cards_of(name, outcome.cards, now),
        own_tokens=own_tokens,
        parent=base.applied.id if base.applied else None,
        metadata={
            "stages": outcome.stages,
            "reasons": outcome.reasons,
            "compressionDuration": round((perf_counter() - run.started) * 1000, 1),
            **outcome.metadata,
        },
    )


class _Driver:
    """Drives a generator of effects on a view, and counts what it asks for."""

    def __init__(self, resolve: Resolve, view: View) -> None:
        self._resolve = resolve
        self._load = load_of(view.transcript.chain)
        self.tokens = 0
        self.has_asked = False

    async def drive(self, running: Generator[tuple[Effect, ...], tuple[Result, ...], T]) -> T:
        ended: list[T] = []

        def advance(results: tuple[Result, ...] | None) -> tuple[Effect, ...]:
            """The next effects. The value at the end is put aside, because a `StopIteration` cannot leave a thread."""
            try:
                return next(running) if results is None else running.send(results)
            except StopIteration as stop:
                ended.append(stop.value)
                return ()

        results: tuple[Result, ...] | None = None
        while True:
            effects = await offload(self._load, advance, results)
            if ended:
                return ended[0]
            results = await self._resolve(effects)
            # To learn, or to know, that an upstream has no compaction is not worth a word.
            self.has_asked |= results != (Failure(NO_COMPACTION),)
            self.tokens += sum(result.tokens for result in results if not isinstance(result, Failure))


@dataclass(slots=True)
class _TimedModels:
    """Resolves effects by models; what is not answered at the deadline has timed out."""

    models: Models
    _deadline: float  # a time of the event loop's clock
    _tasks: OwnedTasks
    asked: list[asyncio.Task[tuple[Result, ...]]] = field(default_factory=list)
    """What models were asked, in order. Only the last may be late, because nothing is asked after it."""
    is_late: bool = False

    async def __call__(self, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        if self.is_late:
            return await _time_out(effects)
        left = self._deadline - asyncio.get_running_loop().time()
        task = self._tasks.own(self.models(effects))
        self.asked.append(task)
        with self.models.caller.waiters.waiting():
            await asyncio.wait({task}, timeout=max(left, 0))
        self.is_late = not task.done()
        return await _time_out(effects) if self.is_late else task.result()

    async def repeat(self, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        """What was answered to the same effects before, in the order in which they were asked; after that, models."""
        return await (self.asked.pop(0) if self.asked else self.models(effects))


async def _time_out(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    return tuple(Failure("timeout") for _ in effects)


async def _project(counter: TokenCounter, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    """Answers in place of models, with texts of the size asked for by this counter."""

    def project(effect: Effect) -> Result:
        if isinstance(effect, Compact):
            text = PROJECTED * max(int(SHARE_OF_CAP * PROJECTED_COMPACTION) // counter.text(PROJECTED), 1)
            return Compacted((dump(counter.dialect.assistant(text)),), "", "projected")
        if not isinstance(effect, Ask):
            return Failure("not-asked")
        cap = effect.max_tokens if effect.record is None else effect.record
        times = max(int(SHARE_OF_CAP * cap) // counter.text(PROJECTED), 1)
        return Answer(f"<summary>{PROJECTED * times}</summary>")

    return tuple(project(effect) for effect in effects)


@dataclass(slots=True, eq=False)
class Maker:
    _runner: PipelineRunner
    _keeper: Keeper
    _tasks: OwnedTasks
    _clock: Callable[[], float]

    async def prepare(self, decision: Decision, verdict: Verdict | None = None, *, background: bool) -> RunResult:
        """Makes a condensation for a later request, and records it as prepared, not applied; this may take minutes.

        With a `verdict` of judges, the condensation follows that.
        """
        context = decision.context
        run = self._run_for(Requirement.PREPARE, decision, verdict)
        result = await self._runner.run(run, caller_of(context, self._tasks, background=background))
        if result.condensation is None or verdict is None:
            return await self._record(result, context, standing=False)
        judged = replace(result.condensation, trigger=JUDGED)
        kept = await self._record(result._replace(condensation=judged), context, standing=False)
        if kept.condensation is not None and kept.condensation.trigger != JUDGED:
            # The same messages were prepared for a mark already, but only a judged record is applied before that mark.
            kept = await self._record(result._replace(condensation=_one_level_deeper(judged)), context, standing=False)
        return kept

    async def make(self, requirement: Requirement, decision: Decision, until: float) -> RunResult:
        """The condensation that a requirement calls for, recorded if the request may be stored, or a projected one.

        Models are waited for until `until`, a time of the event loop's clock.
        """
        context, run = decision.context, self._run_for(requirement, decision)
        if context.is_projected:
            return await self._runner.project(run)
        if not context.may_store:
            return await self._run_and_record(run, context, until)
        clock = asyncio.get_running_loop().time
        began = clock()
        head = context.history.transcript.digests[-1] if context.history.transcript.chain else b""
        result, is_leader = await self._tasks.share(
            shared_id(context, requirement.value, head, run.base.applied_id),
            self._unless_recorded(run, context, until),
            lambda made: made.condensation is not None and not made.store_failure,
        )
        if is_leader:
            return result
        context.recognised.patience.spend(min(result.store_seconds, clock() - began))
        # A request that joined the flight records the result too: its session may be another one, or the store may have
        # lost the record since.
        return await self._record(result._replace(own_tokens=0), context)

    async def _unless_recorded(self, run: Run, context: RequestContext, until: float) -> RunResult:
        """Makes the condensation for all requests that share this flight.

        The result says how long the flight waited for the store, because each of these requests has waited as long.
        """
        patience = context.recognised.patience
        before = patience.remaining
        since = await self._keeper.recorded_since(context.recognised)
        recorded = next(iter(standing_condensations(since, context.history.transcript.digests)), None)
        # It may be the prepared record that this request has just made standing, and that was not enough.
        is_new = recorded is not None and recorded.id != run.base.applied_id
        if recorded is not None and is_new and _shows_required(recorded, context):
            result = RunResult(recorded)
        else:
            result = await self._run_and_record(run, context, until)
        return result._replace(store_seconds=before - patience.remaining)

    async def _run_and_record(self, run: Run, context: RequestContext, until: float) -> RunResult:
        result = await self._runner.run_until(until, run, caller_of(context, self._tasks, background=False))
        if result.late is not None and not context.may_store:
            result.late.cancel()
        elif result.late is not None:
            late = self._record_late(result.late, run, context.with_fresh_patience())
            self._tasks.start(late, branch_key(context), always=True)
        return await self._record(result, context)

    async def _record_late(
        self, working: asyncio.Task[RunResult], run: Run, context: RequestContext
    ) -> Condensation | None:
        """Records what models wrote too late for the request that waited, one step deeper than what replaced it."""
        late = await working
        asking = {stage.name for stage in run.policy.stages if stage.asks}
        if late.condensation is None or asking.isdisjoint(late.condensation.metadata["stages"]):
            return None
        prepared = run._replace(requirement=Requirement.PREPARE)
        ours = replace(late.condensation, requirement=prepared.requirement.value, trigger=prepared.trigger.value)
        kept = await self._record(late._replace(condensation=_one_level_deeper(ours)), context, standing=False)
        await self._keeper.amend(context.recognised, lambda session: session.with_totals(own_tokens=late.own_tokens))
        return kept.condensation

    async def _record(self, result: RunResult, context: RequestContext, *, standing: bool = True) -> RunResult:
        """Records a condensation, and returns the record that counts: ours, or that of the first writer.

        A standing record that was made for a longer transcript may hide what this view must show: then ours is
        recorded one step deeper.
        """
        ours = result.condensation
        if ours is None or not context.may_store:
            return result
        try:
            kept = await self._keeper.record(context.recognised, ours, standing=standing)
            while standing and kept.pieces != ours.pieces and not _shows_required(kept, context):
                ours = _one_level_deeper(ours)
                kept = await self._keeper.record(context.recognised, ours, standing=True)
        except StoreError as error:
            return result._replace(store_failure=error.reason)
        return result._replace(condensation=kept)

    def extend_judged(self, prepared: Replayed, judging: Judging | None) -> Condensation | None:
        """A judged record, extended over later messages that its strategy drops; None if there are none."""
        judged = prepared.applied
        if judging is None or judged is None or judged.trigger != JUDGED:
            return None
        shortened = judging.shortened(prepared.view, judged.metadata)
        if shortened is None:
            return None
        view = shortened.view
        return replace(
            judged,
            id=_new_id(),
            digest=view.transcript.digests[view.covered_count - 1],
            covered=view.covered_count,
            pieces=head_pieces(view),
            tokens_after=view.tokens,
            metadata={**judged.metadata, **shortened.metadata},
        )

    def _run_for(self, requirement: Requirement, decision: Decision, verdict: Verdict | None = None) -> Run:
        context, facts = decision.context, decision.context.session_facts(self._clock(), verdict)
        budget, drops = context.sized.budget, context.recognised.drops
        return Run(requirement, decision.base, context.policy, budget, facts, perf_counter(), drops)


def _one_level_deeper(condensation: Condensation) -> Condensation:
    """The same record one step deeper, with a new id."""
    name = _new_id()
    cards = tuple(replace(card, condensation=name) for card in condensation.cards)
    return replace(condensation, depth=condensation.depth + 1, id=name, cards=cards)


def _shows_required(condensation: Condensation, context: RequestContext) -> bool:
    """Whether this request's view shows all that it must show with a condensation."""
    return shows_protected_messages(
        fold(context.history.transcript, (condensation.overlay,), context.sized.overhead, context.server.counter)
    )


def caller_of(context: RequestContext, tasks: OwnedTasks | None = None, *, background: bool) -> Caller:
    """The caller on whose behalf the proxy asks models; with `tasks` it knows who waits for the branch's work."""
    request, policy, body = context.request, context.policy, context.request.body
    offered = offer_members(body, context.offer)

    def texts(names: Iterable[str]) -> dict[str, str]:
        found = {name: offered.get(name) or body.envelope.raw_value(name) for name in names}
        return {name: text for name, text in found.items() if text}

    return Caller(
        request.model,
        request.upstream,
        request.headers,
        texts(body.endpoint.prompt_members),
        texts(compaction.members_of(body.endpoint)) if policy.reads_opaque else {},
        request.received_at,
        request.trust,
        background,
        policy.profile,
        policy.background,
        tasks.waiters(branch_key(context)) if tasks else NOBODY,
        body.endpoint,
        request.target.decode("utf-8", "replace"),
        request.query.decode("utf-8", "replace"),
        context.recognised.knows_stored,
        request.tenant,
        context.sized.calibrated.slope.value,
        body.values.get("stream") is True,
        session=context.recognised.key,
    )


def branch_key(context: RequestContext) -> Hashable:
    """The key of the branch's background work in this process: only one such task runs at a time."""
    return context.recognised.key, context.branch_name


def shared_id(context: RequestContext, kind: str, head: bytes, applied: str) -> str:
    """The id of a piece of work, which is the same in all processes of one version.

    A digest of its `kind`, its owner, the chain that ends with `head`, the condensation `applied` in the view that it
    starts from, its pipeline and its budget.
    """
    request, policy = context.request, context.policy
    owner = request.tenant, context.recognised.identity, request.model
    options = [str(getattr(stage, "options", "")) for stage in policy.stages]
    parts = *owner, head, applied, kind, policy.pipeline.text, options, policy.budget
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()
