"""Running a pipeline: effects are resolved within the inline budget, failures become reasons.

A strategy is a generator that yields effects. Here they meet the world: a summarizer, or for `observe:` and dry runs
a projection that answers with a text of the size that was asked for, so that no model is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from proxy.policy import Policy
from proxy.reasons import Reason
from proxy.summarizer import Caller, Summarizer
from strategies.core.effects import Answer, Ask, Effect, Failure, Result
from strategies.core.errors import StrategyError
from strategies.core.protocol import Past
from strategies.core.requirement import Requirement
from strategies.core.view import View
from strategies.pipeline import Outcome, Run, attempt

PROJECTED = "(here a model's summary would stand) "

_log = logging.getLogger(__name__)

Resolve = Callable[[tuple[Effect, ...]], Awaitable[tuple[Result, ...]]]


class Attempted(NamedTuple):
    """What came of a requirement: an outcome, or the reason why there is none; tokens of our own calls."""

    outcome: Outcome | None
    reason: str
    own_tokens: int
    asked: bool


class Attempts:
    """Runs pipelines; one per app. `inline_timeout` is in seconds and covers all effects of one request."""

    def __init__(self, summarizer: Summarizer, inline_timeout: float) -> None:
        self._summarizer = summarizer
        self._inline_timeout = inline_timeout

    async def attempt(
        self, requirement: Requirement, view: View, policy: Policy, past: Past, caller: Caller | None
    ) -> Attempted:
        """The outcome of the policy's pipeline; without a `caller` nothing is asked and texts are projected."""
        if policy.budget is None:
            return Attempted(None, Reason.WINDOW_UNKNOWN, 0, False)
        running = attempt(requirement, policy.stages, policy.ladder, view, policy.budget, past)
        resolving = _Resolving(_project if caller is None else self._within_budget(policy, caller))
        try:
            outcome = await resolving.drive(running)
        except StrategyError as error:
            return Attempted(None, error.reason, resolving.tokens, resolving.asked)
        except Exception:  # noqa: BLE001
            # A defect in a strategy costs headroom, never the reply.
            _log.exception("a strategy failed")
            return Attempted(None, Reason.INTERNAL_ERROR, resolving.tokens, resolving.asked)
        for defect in outcome.defects:
            _log.error("a stage failed", exc_info=defect)
        return Attempted(outcome, outcome.failure, resolving.tokens, resolving.asked)

    def _within_budget(self, policy: Policy, caller: Caller) -> Resolve:
        deadline = asyncio.get_running_loop().time() + self._inline_timeout

        async def resolve(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._summarizer.resolve(effects, policy.summarizer, caller)
            except TimeoutError:
                return tuple(Failure("timeout") for _ in effects)

        return resolve


class _Resolving:
    """Drives one run and keeps the account of what it asked for."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self.tokens = 0
        self.asked = False

    async def drive(self, running: Run) -> Outcome:
        try:
            effects = next(running)
            while True:
                self.asked = True
                results = await self._resolve(effects)
                self.tokens += sum(each.tokens for each in results if isinstance(each, Answer))
                effects = running.send(results)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome


async def _project(effects: tuple[Effect, ...]) -> tuple[Result, ...]:
    return tuple(_projected(each) for each in effects)


def _projected(effect: Effect) -> Result:
    if not isinstance(effect, Ask):
        return Failure("not-asked")
    words = max(effect.max_tokens // 16, 1)
    return Answer(PROJECTED * words)
