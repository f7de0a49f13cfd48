"""Running a pipeline: effects are resolved, failures become reasons.

A strategy is a generator that yields effects. Here they meet the world: a summarizer, or for `observe:` and dry runs
a projection that answers with a text of the size that was asked for, so that no model is called.

Where somebody waits, there is a deadline. When it comes, the stages that ask no model make room, and the models go on:
what comes of them late is worth keeping for the next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from proxy.asking import Caller, Resolver
from proxy.condensing.policy import Policy
from proxy.reasons import Reason
from proxy.runtime.offload import loaded, offloaded
from proxy.runtime.owned_tasks import OwnedTasks
from strategies.core.effects import Answer, Ask, Effect, Failure, Result, Votes
from strategies.core.errors import StrategyError
from strategies.core.protocol import Past, Strategy
from strategies.core.requirement import Requirement
from strategies.core.transcript import Counter
from strategies.core.view import View
from strategies.pipeline import Outcome, attempt

T = TypeVar("T")

PROJECTED = "(here a model's summary would stand) "
OF_CAP = 0.75  # of what a record may have; models are told a number of words that leaves some room

_log = logging.getLogger(__name__)

Resolve = Callable[[tuple[Effect, ...]], Awaitable[tuple[Result, ...]]]


class Attempted(NamedTuple):
    """What came of a requirement: an outcome, or the reason why there is none; tokens of our own calls.

    `late` is what models still work on when the time of the one who waits is over.
    """

    outcome: Outcome | None
    reason: str
    own_tokens: int
    asked: bool
    late: asyncio.Task[Attempted] | None = None


@dataclass(slots=True)
class Urgency:
    """On whose behalf a run asks. It becomes background work when nobody waits for it any more."""

    caller: Caller


class Attempts:
    """Runs pipelines; one per app."""

    def __init__(self, summarizer: Resolver, tasks: OwnedTasks[Any]) -> None:
        self._summarizer = summarizer
        self._tasks = tasks

    async def project(self, requirement: Requirement, view: View, policy: Policy, past: Past) -> Attempted:
        """What would come of the policy's pipeline: nothing is asked, texts are of the size that was asked for."""
        return await self._attempted(requirement, policy.stages, view, policy, past, projecting(view.counter))

    async def attempt(
        self, requirement: Requirement, view: View, policy: Policy, past: Past, caller: Caller
    ) -> Attempted:
        """The outcome of the policy's pipeline, however long its models take."""
        resolve = self.asking(policy, Urgency(caller))
        return await self._attempted(requirement, policy.stages, view, policy, past, resolve)

    async def attempt_until(
        self, deadline: float, requirement: Requirement, view: View, policy: Policy, past: Past, caller: Caller
    ) -> Attempted:
        """The outcome of the policy's pipeline; from `deadline` on, a time of the loop's clock, without its models."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            # Another replica was waited for, and its models are still at it.
            return await self._without_models(requirement, view, policy, past)
        urgency = Urgency(caller)
        work = self._attempted(requirement, policy.stages, view, policy, past, self.asking(policy, urgency))
        task = self._tasks.own(work)
        try:
            await asyncio.wait({task}, timeout=left)
            if task.done():
                return task.result()
            urgency.caller = replace(caller, background=True)
            without = await self._without_models(requirement, view, policy, past)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return without._replace(asked=True, late=task)

    async def _without_models(self, requirement: Requirement, view: View, policy: Policy, past: Past) -> Attempted:
        rest = [stage for stage in policy.stages if not stage.asks]
        without = await self._attempted(requirement, rest, view, policy, past, projecting(view.counter))
        return without._replace(reason=Reason.SUMMARY_TIMEOUT)

    async def _attempted(
        self,
        requirement: Requirement,
        stages: Sequence[Strategy],
        view: View,
        policy: Policy,
        past: Past,
        resolve: Resolve,
    ) -> Attempted:
        if policy.budget is None:
            return Attempted(None, Reason.WINDOW_UNKNOWN, 0, False)
        resolving = Resolving(resolve, loaded(len(view.transcript.chain), view.tokens))
        try:
            outcome = await resolving.drive(attempt(requirement, stages, policy.ladder, view, policy.budget, past))
        except StrategyError as error:
            return Attempted(None, error.reason, resolving.tokens, resolving.asked)
        except Exception:  # noqa: BLE001
            # A defect in a strategy costs headroom, never the reply.
            _log.exception("a strategy failed")
            return Attempted(None, Reason.INTERNAL_ERROR, resolving.tokens, resolving.asked)
        for defect in outcome.defects:
            _log.error("a stage failed", exc_info=defect)
        return Attempted(outcome, outcome.failure, resolving.tokens, resolving.asked)

    def asking(self, policy: Policy, urgency: Urgency) -> Resolve:
        """What resolves effects on behalf of a caller, however long it takes."""

        async def resolve(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
            return await self._summarizer.resolve(effects, policy.roles, urgency.caller)

        return resolve


class Resolving:
    """Drives a generator of effects and keeps the account of what it asked for; `messages` is the size of its view."""

    def __init__(self, resolve: Resolve, messages: int) -> None:
        self._resolve = resolve
        self._messages = messages
        self.tokens = 0
        self.asked = False

    async def drive(self, running: Generator[tuple[Effect, ...], tuple[Result, ...], T]) -> T:
        """What a generator of effects returns."""
        results: tuple[Result, ...] | None = None
        while True:
            step = await offloaded(self._messages, _stepped, running, results)
            if isinstance(step, _Returned):
                return step.value
            self.asked = True
            results = await self._resolve(step)
            self.tokens += sum(each.tokens for each in results if isinstance(each, Answer | Votes))


class _Returned(Generic[T]):
    """What a generator returned; no `StopIteration` can cross a thread."""

    def __init__(self, value: T) -> None:
        self.value = value


def _stepped(
    running: Generator[tuple[Effect, ...], tuple[Result, ...], T], results: tuple[Result, ...] | None
) -> tuple[Effect, ...] | _Returned[T]:
    """The next effects of a generator, or what it returned."""
    try:
        return next(running) if results is None else running.send(results)
    except StopIteration as stop:
        return _Returned(stop.value)


def projecting(counter: Counter) -> Resolve:
    """What answers in place of models with texts of the size that they are asked for, by this count."""

    async def project(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
        return tuple([_projected(each, counter) for each in effects])

    return project


def _projected(effect: Effect, counter: Counter) -> Result:
    if not isinstance(effect, Ask):
        return Failure("not-asked")
    most = effect.max_tokens if effect.record is None else effect.record
    times = max(int(OF_CAP * most) // counter.text(PROJECTED), 1)
    return Answer(f"<summary>{PROJECTED * times}</summary>")
