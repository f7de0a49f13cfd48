"""Runs a pipeline: resolves the effects that strategies yield, and turns failures into reasons.

A strategy is a generator that yields effects. Normally a summarizer answers them. For `observe:` and dry runs a
projection answers instead, with a text of the size that was asked for, so no model is called.

A request that waits sets a deadline. When it passes, the stages that ask no model make room, and the models go on in
the background: a late text is worth recording for the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from proxy.asking import Caller, Resolver
from proxy.condensing.policy import Policy
from proxy.reasons import Reason
from proxy.runtime.owned_tasks import OwnedTasks, message_load, offload
from strategies.core.effects import Answer, Ask, Effect, Failure, Result, Votes
from strategies.core.errors import StrategyError
from strategies.core.messages import TokenCounter
from strategies.core.protocol import SessionFacts, Strategy
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.pipeline import Outcome, attempt

T = TypeVar("T")

PROJECTED = "(here a model's summary would stand) "
SHARE_OF_CAP = 0.75
"""The share of its cap that a projected text fills: the number of words in the prompt leaves some room."""

_log = logging.getLogger(__name__)

Resolve = Callable[[tuple[Effect, ...]], Awaitable[tuple[Result, ...]]]


class RunResult(NamedTuple):
    """The result of a run: an outcome, or the reason why there is none."""

    outcome: Outcome | None
    reason: str
    own_tokens: int
    """Tokens of our own model calls."""
    asked_model: bool
    """Whether a model was asked, or its answer projected."""
    late: asyncio.Task[RunResult] | None = None
    """The run that goes on with its models after the deadline."""


@dataclass(slots=True)
class Urgency:
    """The caller on whose behalf a run asks models; it becomes a background caller once no request waits."""

    caller: Caller


class PipelineRunner:
    """Runs pipelines; one per app."""

    def __init__(self, summarizer: Resolver, tasks: OwnedTasks) -> None:
        self._summarizer = summarizer
        self._tasks = tasks

    async def project(self, requirement: Requirement, view: View, policy: Policy, session: SessionFacts) -> RunResult:
        """Runs the policy's pipeline without asking a model: texts have the size that was asked for."""
        return await self._drive(requirement, policy.stages, view, policy, session, projection(view.counter))

    async def run(
        self, requirement: Requirement, view: View, policy: Policy, session: SessionFacts, caller: Caller
    ) -> RunResult:
        """Runs the policy's pipeline, however long its models take."""
        resolve = self.resolver_for(policy, Urgency(caller))
        return await self._drive(requirement, policy.stages, view, policy, session, resolve)

    async def run_until(
        self,
        deadline: float,
        requirement: Requirement,
        view: View,
        policy: Policy,
        session: SessionFacts,
        caller: Caller,
    ) -> RunResult:
        """Runs the policy's pipeline until `deadline`, a time of the event loop's clock; after that, without its
        models.
        """
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            # The time went by waiting for another replica, whose models are still at work.
            return await self._without_models(requirement, view, policy, session)
        urgency = Urgency(caller)
        work = self._drive(requirement, policy.stages, view, policy, session, self.resolver_for(policy, urgency))
        task = self._tasks.own(work)
        try:
            await asyncio.wait({task}, timeout=left)
            if task.done():
                return task.result()
            urgency.caller = replace(caller, background=True)
            without = await self._without_models(requirement, view, policy, session)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return without._replace(asked_model=True, late=task)

    async def _without_models(
        self, requirement: Requirement, view: View, policy: Policy, session: SessionFacts
    ) -> RunResult:
        without = await self._drive(requirement, policy.stages, view, policy, session, _timed_out)
        return without._replace(reason=Reason.SUMMARY_TIMEOUT)

    async def _drive(
        self,
        requirement: Requirement,
        stages: Sequence[Strategy],
        view: View,
        policy: Policy,
        session: SessionFacts,
        resolve: Resolve,
    ) -> RunResult:
        if policy.budget is None:
            return RunResult(None, Reason.WINDOW_UNKNOWN, 0, False)
        driver = EffectDriver(resolve, message_load(len(view.transcript.chain), view.tokens))
        try:
            outcome = await driver.drive(attempt(requirement, stages, policy.ladder, view, policy.budget, session))
        except StrategyError as error:
            return RunResult(None, error.reason, driver.tokens, driver.has_asked)
        except Exception:  # noqa: BLE001
            # A defect in a strategy costs headroom, never the reply.
            _log.exception("a strategy failed")
            return RunResult(None, Reason.INTERNAL_ERROR, driver.tokens, driver.has_asked)
        for defect in outcome.defects:
            _log.error("a stage failed", exc_info=defect)
        return RunResult(outcome, outcome.failure, driver.tokens, driver.has_asked)

    def resolver_for(self, policy: Policy, urgency: Urgency) -> Resolve:
        """A function that has a caller's effects resolved by models, however long that takes."""

        async def resolve(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
            return await self._summarizer.resolve(effects, policy.roles, urgency.caller)

        return resolve


class EffectDriver:
    """Drives a generator of effects, and counts what it asks for; `messages` is the size of its view."""

    def __init__(self, resolve: Resolve, messages: int) -> None:
        self._resolve = resolve
        self._messages = messages
        self.tokens = 0
        self.has_asked = False

    async def drive(self, running: Generator[tuple[Effect, ...], tuple[Result, ...], T]) -> T:
        """Runs a generator of effects to its end, and returns its value."""
        results: tuple[Result, ...] | None = None
        while True:
            step = await offload(self._messages, _advance, running, results)
            if isinstance(step, _Returned):
                return step.value
            self.has_asked = True
            results = await self._resolve(step)
            self.tokens += sum(each.tokens for each in results if isinstance(each, Answer | Votes))


class _Returned(Generic[T]):
    """The value of a generator that has ended; a `StopIteration` cannot cross a thread."""

    def __init__(self, value: T) -> None:
        self.value = value


def _advance(
    running: Generator[tuple[Effect, ...], tuple[Result, ...], T], results: tuple[Result, ...] | None
) -> tuple[Effect, ...] | _Returned[T]:
    """The next effects of a generator, or its value at the end."""
    try:
        return next(running) if results is None else running.send(results)
    except StopIteration as stop:
        return _Returned(stop.value)


async def _timed_out(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    return tuple(Failure("timeout") for _ in effects)


def projection(counter: TokenCounter) -> Resolve:
    """A function that answers effects in place of models, with texts of the size asked for by this counter."""

    async def project(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        return tuple([_project(each, counter) for each in effects])

    return project


def _project(effect: Effect, counter: TokenCounter) -> Result:
    if not isinstance(effect, Ask):
        return Failure("not-asked")
    cap = effect.max_tokens if effect.record is None else effect.record
    times = max(int(SHARE_OF_CAP * cap) // counter.text(PROJECTED), 1)
    return Answer(f"<summary>{PROJECTED * times}</summary>")
