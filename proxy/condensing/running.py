"""Runs a pipeline to a condensation: resolves the effects that strategies yield, and turns failures into reasons.

A strategy is a generator that yields effects. Normally models answer them. For `observe:` and dry runs a projection
answers instead, with a text of the size that was asked for, so that no model is called.

A request that waits sets a deadline. When it passes, the stages that ask no model make room, and the models continue in
the background: a late text is worth recording for the next request.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar

from proxy.asking import Caller, Resolver
from proxy.condensing.policy import Policy
from proxy.reasons import Reason, Trigger
from proxy.runtime.owned_tasks import NOBODY, OwnedTasks, Waiters, load_of, offload
from strategies.core.budget import Budget
from strategies.core.cards import MemoryCard
from strategies.core.condensation import Condensation, Replayed
from strategies.core.effects import SUMMARIZER, Answer, Ask, Effect, Failure, Result, Votes
from strategies.core.errors import StrategyError
from strategies.core.messages import TokenCounter
from strategies.core.plan import head_pieces
from strategies.core.protocol import SessionFacts
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.pipeline import Outcome, run_required

T = TypeVar("T")

PROJECTED = "(here a model's summary would stand) "
SHARE_OF_CAP = 0.75
"""The share of its cap that a projected text fills: the prompt asks a model for a little less than the cap."""

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
    base: Replayed
    """The view to condense, and the condensation in it."""
    policy: Policy
    budget: Budget | None
    """In tokens of our own count."""
    session: SessionFacts
    started: float
    """When it began, by `perf_counter`."""

    @property
    def trigger(self) -> Trigger:
        """The trigger of its condensation. What judges let prepare for a mark waits for the hard limit."""
        waits = self.requirement is Requirement.PREPARE and self.policy.judging is not None
        return Trigger.CONTEXT_LIMIT if waits else TRIGGERS[self.requirement]


class RunResult(NamedTuple):
    """A condensation, made or recorded, or the reason why there is none."""

    condensation: Condensation | None = None
    reason: str = ""
    own_tokens: int = 0
    """Tokens of our own model calls for this request."""
    asked_model: bool = False
    """Whether a model was asked, or its answer projected."""
    late: asyncio.Task[RunResult] | None = None
    """The run that continues with its models after the deadline."""
    store_failure: str = ""
    """The reason why the store did not take the record, if it did not."""
    store_seconds: float = 0.0
    """Seconds that the run waited for the store."""


@dataclass(slots=True)
class Models:
    """Resolves effects by models, however long that takes."""

    _resolver: Resolver
    _policy: Policy
    _budget: Budget | None
    caller: Caller
    """On whose behalf models are asked; it becomes a background caller once no request waits."""
    _view: View
    _shared_cache: Callable[[str], int | None]

    async def __call__(self, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        if not await offload(load_of(self._view.transcript.chain), self._fit, effects):
            _log.info("no call for %s: it would not fit the server's shared cache beside the view", self.caller.model)
            return tuple(Failure("shared-cache") for _ in effects)
        return await self._resolver.resolve(effects, self._policy.roles, self.caller)

    def _fit(self, effects: tuple[Effect, ...]) -> bool:
        """Whether each prompt with its answer fits, beside the client's view, the cache that requests share."""
        return all(map(self._fits, effects))

    def _fits(self, effect: Effect) -> bool:
        """Whether prompt, answer and the client's view fit a cache that the slots of the upstream's server share."""
        role, budget, text = self._policy.roles[effect.role], self._budget, self._view.counter.text
        tokens = self._shared_cache(self.caller.model) if role.base_url is None else None
        if tokens is None or budget is None:
            return True
        continued = text(effect.view or "") if isinstance(effect, Ask) else 0
        needed = text(effect.system) + text(effect.user) + continued + effect.max_tokens + self._view.tokens
        return needed <= tokens * budget.window / budget.upstream_window  # in tokens of our own count


class PipelineRunner:
    """`expected_seconds` tells how long an answer would take (`Dispatcher.expected_seconds`).

    `shared_cache` gives the tokens of the cache that the slots of a model's server share, if they do.
    """

    def __init__(
        self,
        resolver: Resolver,
        tasks: OwnedTasks,
        clock: Callable[[], float],
        expected_seconds: Callable[..., float] = lambda *_, **__: 0.0,
        shared_cache: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._resolver = resolver
        self._shared_cache = shared_cache
        self._expected_seconds = expected_seconds
        self._tasks = tasks
        self._clock = clock

    def _models(self, policy: Policy, budget: Budget | None, caller: Caller, view: View) -> Models:
        return Models(self._resolver, policy, budget, caller, view, self._shared_cache)

    async def project(self, run: Run) -> RunResult:
        """Runs the pipeline with projected texts in place of a model's."""
        return await self._drive(run, partial(_project, run.base.view.counter))

    async def run(self, run: Run, caller: Caller) -> RunResult:
        """Runs the pipeline, however long its models take."""
        return await self._drive(run, self._models(run.policy, run.budget, caller, run.base.view))

    async def run_until(self, deadline: float, run: Run, caller: Caller) -> RunResult:
        """Runs the pipeline until `deadline`, a time of the event loop's clock; after that, without its models."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0 or self.is_hopeless(SUMMARIZER, run.policy, caller, deadline):
            # All the time was spent waiting for another replica, whose models are still at work; or the last answer
            # has taken longer than the client would wait for this one.
            return await self._without_models(run)
        caller = caller if caller.waiters is not NOBODY else replace(caller, waiters=Waiters())
        models = self._models(run.policy, run.budget, caller, run.base.view)
        task = self._tasks.own(self._drive(run, models))
        try:
            with caller.waiters.waiting():
                await asyncio.wait({task}, timeout=left)
            if task.done():
                return task.result()
            models.caller = replace(caller, background=True)
            without = await self._without_models(run)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return without._replace(asked_model=True, late=task)

    def is_hopeless(self, role: str, policy: Policy, caller: Caller, deadline: float, *, joins: bool = False) -> bool:
        """Whether an answer that takes as long as the last one would come after `deadline`, by the loop's clock.

        With `joins`, the answer of a call that is under way.
        """
        left = deadline - asyncio.get_running_loop().time()
        return self._expected_seconds(policy.roles[role], caller, joins=joins) > max(left, 0.0)

    async def _without_models(self, run: Run) -> RunResult:
        return (await self._drive(run, _time_out))._replace(reason=Reason.SUMMARY_TIMEOUT)

    async def _drive(self, run: Run, resolve: Resolve) -> RunResult:
        requirement, base, policy, budget, session, _ = run
        if budget is None:
            return RunResult(reason=Reason.WINDOW_UNKNOWN)
        driver = _Driver(resolve, base.view)
        try:
            outcome = await driver.drive(
                run_required(requirement, policy.stages, policy.ladder, base.view, budget, session)
            )
        except StrategyError as error:
            return RunResult(None, error.reason, driver.tokens, driver.has_asked)
        except Exception:  # noqa: BLE001
            # A defect in a strategy costs headroom, never the reply.
            _log.exception("a strategy failed")
            return RunResult(None, Reason.INTERNAL_ERROR, driver.tokens, driver.has_asked)
        for defect in outcome.defects:
            _log.error("a stage failed", exc_info=defect)
        made = condensation_of(run, outcome, driver.tokens, self._clock())
        return RunResult(made, outcome.failure, driver.tokens, driver.has_asked)

    async def ask_judges(
        self,
        polling: Generator[tuple[Effect, ...], tuple[Result, ...], T],
        view: View,
        policy: Policy,
        budget: Budget,
        caller: Caller,
    ) -> tuple[T, int]:
        """The result of a poll of judges about a view, and the tokens that it cost."""
        driver = _Driver(self._models(policy, budget, caller, view), view)
        return await driver.drive(polling), driver.tokens


def new_id() -> str:
    """A random id for a condensation; records are found by chain and depth, not by this id."""
    return "c" + secrets.token_hex(8)


def _cards_of(condensation: str, cards: Iterable[MemoryCard], now: float) -> tuple[MemoryCard, ...]:
    """Memory cards as they are recorded with a condensation at `now`."""
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return tuple(replace(card, condensation=condensation, created_at=card.created_at or at) for card in cards)


def condensation_of(run: Run, outcome: Outcome, own_tokens: int, now: float) -> Condensation:
    """The condensation that a run has led to at `now`, in seconds since the epoch."""
    name, base, policy, view = new_id(), run.base, run.policy, outcome.view
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
            self.has_asked = True
            results = await self._resolve(effects)
            self.tokens += sum(result.tokens for result in results if isinstance(result, Answer | Votes))


async def _time_out(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    return tuple(Failure("timeout") for _ in effects)


async def _project(counter: TokenCounter, effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    """Answers in place of models, with texts of the size asked for by this counter."""

    def project(effect: Effect) -> Result:
        if not isinstance(effect, Ask):
            return Failure("not-asked")
        cap = effect.max_tokens if effect.record is None else effect.record
        times = max(int(SHARE_OF_CAP * cap) // counter.text(PROJECTED), 1)
        return Answer(f"<summary>{PROJECTED * times}</summary>")

    return tuple(project(effect) for effect in effects)
